"""``decisions = decide(state)``: pure and synchronous.

The state holds everything: the present time, the seed, the queue. The same records give the same
state and so the same decisions. The caller folds each decision before it asks for the next one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import msgspec
import numpy as np

from asched.cycle.attempt import Attempt, Screening
from asched.cycle.extenders import ExtenderRound, NoExtenders, consult
from asched.cycle.group_conditions import group_decisions
from asched.cycle.post_filter import (
    as_recorded,
    check_keys,
    narrowed_status,
    permit_timeout_s,
    post_filter,
)
from asched.cycle.shape_cache import ShapeCache
from asched.cycle.tie_breaker import BestNodes, select_node
from asched.framework.interface import (
    PermitResult,
    ReserveResult,
)
from asched.framework.pod_groups import GANG_ROOM
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.extenders import AttemptPausedError, ExtenderFailureError
from asched.framework.runtime.findings import histogram, rejecting_plugins
from asched.framework.runtime.observation import OBSERVATION, CallObserver, printable
from asched.framework.runtime.plugin_calls import PluginFailure, answered_error, ask, check_status
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.model.quantity import NS_PER_S, format_duration
from asched.state.circuits import Circuit
from asched.state.cluster import ClusterState
from asched.state.records import (
    Assigned,
    AttemptFailed,
    Decision,
    ExtenderAsked,
    PermitAllowed,
    PermitHold,
    PermitRejected,
    Rejected,
    Reservation,
)

_encode = msgspec.json.Encoder().encode

NO_NODES = "no nodes available to schedule pods"


class AttemptObserver(CallObserver, Protocol):
    """Watches some of the attempts."""

    def begin(self, pod: PodInfo, attempt: int) -> bool:
        """An attempt begins: whether it is one to watch."""

    def end(self, decision: Decision) -> None:
        """The watched attempt came to this."""


class Decider:
    """Decides over one state. Holds a cache of shared answers, which changes no decision."""

    def __init__(self, cluster: ClusterState, observer: AttemptObserver | None = None) -> None:
        self._cluster = cluster
        self._cache = ShapeCache(cluster.nodes)
        self._observer = observer

    def next(self) -> tuple[Decision, ...]:
        """The next decisions, empty where there is nothing to decide now.

        More than one come together only where a Permit plugin spoke about several pods that it
        holds, and where the status of a PodGroup follows. All are to be folded before the next
        call.
        """
        decisions = self._next()
        further = group_decisions(self._cluster, decisions)
        return (*decisions, *further) if further else decisions

    def _next(self) -> tuple[Decision, ...]:
        cluster = self._cluster
        if cluster.waiting:
            settled = self._permit_answers() or self._reviewed_permits() or self._due_permits()
            if settled:
                return settled
        queued = cluster.queue.head()
        if queued is None:
            return ()
        profile = cluster.profiles[queued.info.pod.spec.scheduler_name]
        observer = self._observer
        if observer is not None and observer.begin(queued.info, queued.attempts + 1):
            decision = self._watched(observer, profile, queued)
        else:
            decision = self._decide(profile, queued)
        return (decision, *self._permit_answers()) if cluster.waiting else (decision,)

    # -- one pod ------------------------------------------------------------------------------

    def _watched(self, observer: AttemptObserver, profile: Profile, queued: QueuedPod) -> Decision:
        OBSERVATION.calls = observer
        try:
            decision = self._decide(profile, queued)
        finally:
            OBSERVATION.calls = None
        observer.end(decision)
        return decision

    def _decide(self, profile: Profile, queued: QueuedPod) -> Decision:
        info, attempt_number = queued.info, queued.attempts + 1
        if profile.missing:
            why = f"the profile cannot decide: {profile.missing}"
            return AttemptFailed(info.key, info.uid, attempt_number, "", why)
        circuits = self._cluster.circuits
        if circuits:
            if plugin := circuits.blocking(profile):
                message = left_alone(circuits.circuit(profile.scheduler_name, plugin), plugin)
                return Rejected(
                    info.key, info.uid, attempt_number, message, (plugin,), circuit=plugin
                )
            profile = circuits.in_force(profile)
        try:
            decision = self._attempt(profile, info, attempt_number)
            # What cannot be recorded must not be folded. It costs less than a microsecond.
            _encode(decision)
            return decision
        except PluginFailure as failure:
            return AttemptFailed(info.key, info.uid, attempt_number, failure.plugin, str(failure))
        except ExtenderFailureError as failure:
            return AttemptFailed(info.key, info.uid, attempt_number, failure.plugin, str(failure))
        except AssertionError:
            raise  # our own: the state contradicts itself
        except Exception as error:  # noqa: BLE001  an answer passed for one and was none: whose?
            why = f"an answer cannot be used: {type(error).__name__}: {printable(error)}"
            return AttemptFailed(info.key, info.uid, attempt_number, "", why)

    def _attempt(self, profile: Profile, info: PodInfo, number: int) -> Decision:
        cluster = self._cluster
        if not cluster.nodes.cluster_size:
            return Rejected(info.key, info.uid, number, NO_NODES)
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("Filter")
        attempt = Attempt(cluster, profile, info, self._cache)
        consultation = consult(cluster, profile, info, number)
        screening = self._screen(attempt, consultation, info)
        if not isinstance(screening, Screening):
            return screening
        if not screening.count:
            return self._no_node(profile, info, number, screening, consultation)
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("Score")
        bonus = consultation.prioritize(screening) if screening.count > 1 else None
        if isinstance(bonus, ExtenderAsked):
            return bonus
        if screening.count == 1:
            best = BestNodes(0, screening.feasible, 1)
        else:
            best = attempt.best(screening, bonus)
        row = select_node(best, cluster.nodes, cluster.seed, info.uid, number)
        decision = Assigned(
            info.key,
            info.uid,
            cluster.nodes.names[row],
            number,
            feasible=screening.count,
            score=best.score,
            ties=best.count,
            examined=screening.examined,
        )
        return self._reserve_and_permit(profile, info, screening, decision)

    def _screen(
        self, attempt: Attempt, consultation: ExtenderRound | NoExtenders, info: PodInfo
    ) -> Screening | ExtenderAsked:
        """What plugins and extenders leave: of the nominated node, or else of all."""
        # What was asked about may be outside the share whose turn it is now.
        share = not consultation.begun
        nominated = self._cluster.nominator.node_of(info.key)
        screening = attempt.screen(nominated=nominated, share_of_nodes=share)
        asked = consultation.filter(screening)
        if asked is None and screening.nominated_used and not screening.count:
            screening = attempt.screen(share_of_nodes=share)
            asked = consultation.filter(screening)
        return screening if asked is None else asked

    def _reserve_and_permit(
        self, profile: Profile, info: PodInfo, screening: Screening, decision: Assigned
    ) -> Decision:
        if not profile.reserve and not profile.permit:
            return decision
        reservations: list[Reservation] = []
        for plugin in profile.reserve:
            passed_over = screening.passed_over or screening.state.unconcerned
            if plugin.name in passed_over:
                continue
            result = ask(
                ReserveResult, plugin, "Reserve", plugin.reserve, screening.state, info,
                decision.node,
            )  # fmt: skip
            if type(result.status) is not Status:
                check_status(plugin.name, "Reserve", result.status)
            if not result.status.is_success:
                return _turned_down(decision, result.status.by(plugin.name), "Reserve")
            if result.note is not None:
                reservations.append(Reservation(plugin.name, as_recorded(plugin, result.note)))
        holds: list[PermitHold] = []
        activate: dict[str, None] = {}
        for permit in profile.permit:
            answer = ask(
                PermitResult, permit, "Permit", permit.permit, screening.state, info, decision.node
            )
            if answer.activate:
                activate.update(dict.fromkeys(check_keys(permit, answer.activate)))
            if type(answer.status) is not Status:
                check_status(permit.name, "Permit", answer.status)
            status = answer.status.by(permit.name)
            if status.code is Code.WAIT:
                timeout_ns = round(permit_timeout_s(permit, answer) * NS_PER_S)
                holds.append(PermitHold(permit.name, self._cluster.now_ns + timeout_ns))
            elif not status.is_success:
                return _turned_down(decision, status, "Permit")
        if not holds and not reservations and not activate:
            return decision
        return Assigned(
            decision.key,
            decision.uid,
            decision.node,
            decision.attempt,
            decision.feasible,
            decision.score,
            decision.ties,
            decision.examined,
            tuple(holds),
            tuple(reservations),
            tuple(activate),
        )

    # -- when no node fits --------------------------------------------------------------------

    def _no_node(
        self,
        profile: Profile,
        info: PodInfo,
        number: int,
        screening: Screening,
        consultation: ExtenderRound | NoExtenders,
    ) -> Decision:
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("PostFilter")
        consultation.offer_review(screening)
        try:
            result, in_vain = post_filter(self._cluster, profile, info, screening)
        except AttemptPausedError as paused:
            return consultation.ask_review(paused)
        rejection = screening.rejected
        if rejection is not None:
            statuses = [rejection]
        else:
            statuses = [status for status, _ in screening.counted(self._cluster.nodes)]
        for status in statuses:
            check_status(status.plugin, "Filter" if rejection is None else "PreFilter", status)
        refused, pending = rejecting_plugins(statuses)
        siblings = (GANG_ROOM,) if in_vain else ()
        plugins = tuple(sorted({*refused, *screening.narrowed_by, *siblings}))
        return Rejected(
            info.key,
            info.uid,
            number,
            fit_message(self._cluster, screening, result.status.message),
            plugins,
            pending,
            result.nominated_node,
            result.victims,
            screening.examined,
            result.displaced,
            result.at_once,
        )

    # -- held pods ----------------------------------------------------------------------------

    def _due_permits(self) -> tuple[Decision, ...]:
        """Held pods whose time is up."""
        cluster = self._cluster
        next_ns = cluster.permits.next_deadline_ns()
        if next_ns is None or next_ns > cluster.now_ns:
            return ()
        decisions: list[Decision] = []
        for key, waiting in cluster.waiting.items():
            until_ns, plugin = min((at, name) for name, at in waiting.pending_until_ns.items())
            if until_ns <= cluster.now_ns:
                waited = _as_go_prints(until_ns - waiting.since_ns)
                message = f"rejected due to timeout after waiting {waited} at plugin {plugin}"
                decisions.append(PermitRejected(key, waiting.info.uid, plugin, message))
        return tuple(decisions)

    def _reviewed_permits(self) -> tuple[Decision, ...]:
        """What plugins say that were asked once more about the pods they hold."""
        for profile in self._cluster.profiles.values():
            for plugin in profile.permit_reviewers:
                try:
                    ask(type(None), plugin, "Permit", plugin.review)
                except PluginFailure as failure:
                    self._reject_held_by(plugin.name, str(failure))
        return self._permit_answers()

    def _reject_held_by(self, plugin: str, message: str) -> None:
        for held in self._cluster.permits.held():
            if plugin in held.pending:
                held.reject(plugin, message)

    def _permit_answers(self) -> tuple[Decision, ...]:
        """What plugins said about pods they hold, as decisions."""
        permits = self._cluster.permits
        answers = permits.answers
        if not answers:
            return ()
        waiting = permits.waiting
        pending = {a.key: {*waiting[a.key].pending_until_ns} for a in answers}
        decisions: list[Decision] = []
        for answer in answers:
            held_by = pending.get(answer.key)
            if held_by is None:
                continue  # settled by an earlier answer
            uid = permits.waiting[answer.key].info.uid
            if answer.message is not None:
                # As in kube-scheduler anybody may reject; only who holds the pod can let it go.
                del pending[answer.key]
                decisions.append(PermitRejected(answer.key, uid, answer.plugin, answer.message))
            elif answer.plugin in held_by:
                held_by.remove(answer.plugin)
                decisions.append(PermitAllowed(answer.key, uid, answer.plugin))
                if not held_by:
                    # As in kube-scheduler nobody is heard any more of a pod that was let go.
                    del pending[answer.key]
        return tuple(decisions)


def fit_message(cluster: ClusterState, screening: Screening, post_filter: str) -> str:
    """The text of the pod's condition when no node fits (``FitError.Error`` of kube-scheduler)."""
    text = f"0/{cluster.nodes.cluster_size} nodes are available:"
    if screening.rejected is not None:
        text += f" {screening.rejected.message}."
    else:
        refused = _refusals(cluster, screening)
        if refused:
            text += f" {refused}."
    return f"{text} {post_filter}" if post_filter else text


def _refusals(cluster: ClusterState, screening: Screening) -> str:
    table = cluster.nodes
    counted = [(status.reasons, number) for status, number in screening.counted(table)]
    if screening.node_names is not None:
        left_out = table.cluster_size - int(np.count_nonzero(screening.looked_at(table)))
        if left_out:
            counted.append((narrowed_status(screening).reasons, left_out))
    return histogram(counted)


def left_alone(circuit: Circuit, plugin: str) -> str:
    """Why a pod is turned away while a plugin that its profile needs is not asked."""
    spec = circuit.spec
    window, rest = (
        _as_go_prints(round(seconds * NS_PER_S)) for seconds in (spec.window_s, spec.open_s)
    )
    return (
        f"plugin {plugin} is not asked: it failed {spec.failures} times within {window}, or again"
        f" since, and is left alone for {rest}"
    )


def _as_go_prints(duration_ns: int) -> str:
    """A duration of less than an hour: ``500ms``, ``1.5s``, ``15m0s``."""
    minutes, rest_ns = divmod(duration_ns, 60 * NS_PER_S)
    if minutes:
        return f"{minutes}m{rest_ns / NS_PER_S:g}s"
    return format_duration(timedelta(microseconds=rest_ns // 1000))


def _turned_down(assigned: Assigned, status: Status, point: str) -> Decision:
    """What becomes of an assignment that Reserve or Permit refused."""
    check_status(status.plugin, point, status)
    if not status.is_rejection:
        raise answered_error(status.plugin, point, status.message or status.code.title)
    pending = (status.plugin,) if status.code is Code.PENDING else ()
    return Rejected(
        assigned.key,
        assigned.uid,
        assigned.attempt,
        status.message,
        () if pending else (status.plugin,),
        pending,
        examined=assigned.examined,
    )
