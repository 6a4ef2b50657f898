"""The decisions for single pods: a pure function of the state, which includes time and seed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.extenders import ExtenderRound, NoExtenders, extender_round
from asched.cycle.feasible_nodes import NO_NODES, FeasibleNodes, fit_message
from asched.cycle.node_selection import BestNodes, select_node
from asched.cycle.pod_groups import decide_group_conditions
from asched.cycle.post_filter import run_post_filter
from asched.cycle.precheck import precheck
from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import PermitPlugin, PermitResult, ReservePlugin
from asched.framework.pod_groups import GANG_INFEASIBLE_REASON
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.diagnosis import rejecting_plugins
from asched.framework.runtime.extenders import AttemptPausedError, ExtenderFailureError
from asched.framework.runtime.observation import OBSERVATION, CallObserver, to_printable
from asched.framework.runtime.plugin_calls import (
    PERMIT,
    RESERVE,
    WAITING_POD_REVIEW,
    PluginFailure,
    check_status,
    checked_call,
    error_answer,
    invalid_answer,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.model.quantity import NS_PER_S, format_duration
from asched.state import records as r
from asched.state.circuits import Circuit
from asched.state.cluster import ClusterState
from asched.state.waiting_pods import PermitAnswer

_encode = msgspec.json.Encoder().encode

MAX_PERMIT_TIMEOUT_S = 15 * 60.0
"""The longest time that a Permit plugin can make a pod wait (kube-scheduler's ``maxTimeout``)."""
MAX_ANSWERS = 128
"""Answers about waiting pods that become decisions in one round."""


class AttemptObserver(CallObserver, Protocol):
    """Observes some of the attempts."""

    def begin(self, pod: PodInfo, attempt: int) -> bool:
        """Called when an attempt begins. Returns whether to observe it."""

    def end(self, decision: r.Decision) -> None:
        """Called with the decision of an observed attempt."""


class AttemptMarker(Protocol):
    """Notes the pod in hand."""

    def begin(self, pod: PodInfo) -> None: ...

    def end(self) -> None: ...


class Decider:
    """Makes the decisions for one state. Its cache of shared answers changes no decision."""

    def __init__(self, cluster: ClusterState, observer: AttemptObserver | None = None) -> None:
        self._cluster = cluster
        self._cache = ShapeCache(cluster.nodes)
        self._observer = observer
        self.marker: AttemptMarker | None = None

    def next(self) -> tuple[r.Decision, ...]:
        """The next decisions; empty if there is nothing to decide now.

        There are several if Permit plugins answered about several waiting pods, or if the status of
        a PodGroup changes. All must be folded before the next call.
        """
        decisions = self._next()
        conditions = decide_group_conditions(self._cluster, decisions)
        return (*decisions, *conditions) if conditions else decisions

    def _next(self) -> tuple[r.Decision, ...]:
        cluster = self._cluster
        if cluster.waiting:
            decisions = self._permit_answers() or self._review_permits() or self._expired_permits()
            if decisions:
                return decisions
        queued = cluster.queue.head()
        if queued is None:
            return ()
        profile = cluster.profiles[queued.info.pod.spec.scheduler_name]
        observer, marker = self._observer, self.marker
        if marker is not None:
            marker.begin(queued.info)
        if observer is not None and observer.begin(queued.info, queued.attempts + 1):
            OBSERVATION.calls = observer
            try:
                decision = self._decide(profile, queued)
            finally:
                OBSERVATION.calls = None
            observer.end(decision)
        else:
            decision = self._decide(profile, queued)
        if marker is not None:
            marker.end()
        return (decision, *self._permit_answers()) if cluster.waiting else (decision,)

    # -- one pod ------------------------------------------------------------------------------

    def _decide(self, profile: Profile, queued: QueuedPod) -> r.Decision:
        info, number = queued.info, queued.attempts + 1
        if profile.missing:
            message = f"profile is unusable: {profile.missing}"
            return r.AttemptFailed(info.key, info.uid, number, "", message)
        refused = precheck(self._cluster, queued, number)
        if refused is not None:
            return refused
        circuits = self._cluster.guards.circuits
        if circuits:
            if plugin := circuits.blocking(profile):
                message = open_circuit_message(
                    circuits.circuit(profile.scheduler_name, plugin), plugin
                )
                return r.Rejected(
                    info.key, info.uid, number, message, (plugin,), open_circuit=plugin
                )
            profile = circuits.in_force(profile)
        try:
            decision = self._attempt(profile, info, number)
            # A decision that cannot be recorded must not be folded. Encoding takes less than 1 us.
            _encode(decision)
            return decision
        except PluginFailure as failure:
            plugin = "" if failure.by_object else failure.plugin
            return r.AttemptFailed(info.key, info.uid, number, plugin, str(failure))
        except ExtenderFailureError as failure:
            return r.AttemptFailed(info.key, info.uid, number, failure.plugin, str(failure))
        except AssertionError:
            raise  # the state is inconsistent
        except Exception as error:  # noqa: BLE001  an invalid answer
            why = f"a plugin's answer is invalid: {type(error).__name__}: {to_printable(error)}"
            return r.AttemptFailed(info.key, info.uid, number, "", why)

    def _attempt(self, profile: Profile, info: PodInfo, number: int) -> r.Decision:
        cluster = self._cluster
        if not cluster.nodes.cluster_size:
            return r.Rejected(info.key, info.uid, number, NO_NODES)
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("Filter")
        attempt = Attempt(cluster, profile, info, self._cache)
        extenders = extender_round(cluster, profile, info, number)
        found = self._find_feasible_nodes(attempt, extenders, info)
        if not isinstance(found, FeasibleNodes):
            return found
        if not found.count:
            return self._reject(profile, info, number, found, extenders)
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("Score")
        extender_scores = extenders.prioritize(found) if found.count > 1 else None
        if isinstance(extender_scores, r.ExtenderCallRequested):
            return extender_scores
        if found.count == 1:
            best = BestNodes(0, found.feasible, 1)
        else:
            best = attempt.best(found, extender_scores)
        row = select_node(best, cluster.nodes, cluster.engine.seed, info.uid, number)
        decision = r.Assigned(
            info.key,
            info.uid,
            cluster.nodes.names[row],
            number,
            feasible_nodes=found.count,
            score=best.score,
            ties=best.count,
            evaluated_nodes=found.evaluated,
        )
        if not profile.reserve and not profile.permit:
            return decision
        return self._reserve_and_permit(profile, info, found, decision)

    def _find_feasible_nodes(
        self, attempt: Attempt, extenders: ExtenderRound | NoExtenders, info: PodInfo
    ) -> FeasibleNodes | r.ExtenderCallRequested:
        """The nodes that pass plugins and extenders: the nominated node, or else all."""
        # A pending extender call may cover other nodes than a limited search would find now.
        limit = not extenders.started
        nominated = self._cluster.nominator.node_of(info.key)
        found = attempt.find_feasible_nodes(nominated=nominated, limit_nodes=limit)
        request = extenders.filter(found)
        if request is None and found.nominated_used and not found.count:
            found = attempt.find_feasible_nodes(limit_nodes=limit)
            request = extenders.filter(found)
        return found if request is None else request

    def _reserve_and_permit(
        self, profile: Profile, info: PodInfo, found: FeasibleNodes, decision: r.Assigned
    ) -> r.Decision:
        reservations: list[r.Reservation] = []
        for plugin in profile.reserve:
            if plugin.name in (found.skipped or found.state.inapplicable):
                continue
            result = checked_call(RESERVE, plugin, plugin.reserve, found.state, info, decision.node)
            if type(result.status) is not Status:
                check_status(plugin.name, "Reserve", result.status)
            if not result.status.is_success:
                return _rejected_by(decision, result.status.by(plugin.name), "Reserve")
            if result.reservation is not None:
                reservations.append(
                    r.Reservation(plugin.name, _as_recorded(plugin, result.reservation))
                )
        waits: list[r.PermitWait] = []
        activate: dict[str, None] = {}
        for permit in profile.permit:
            answer = checked_call(PERMIT, permit, permit.permit, found.state, info, decision.node)
            if answer.activate:
                activate.update(dict.fromkeys(_checked_keys(permit, answer.activate)))
            if type(answer.status) is not Status:
                check_status(permit.name, "Permit", answer.status)
            status = answer.status.by(permit.name)
            if status.code is Code.WAIT:
                timeout_ns = round(_permit_timeout_s(permit, answer) * NS_PER_S)
                waits.append(r.PermitWait(permit.name, self._cluster.now_ns + timeout_ns))
            elif not status.is_success:
                return _rejected_by(decision, status, "Permit")
        if not waits and not reservations and not activate:
            return decision
        return msgspec.structs.replace(
            decision,
            permit_waits=tuple(waits),
            reservations=tuple(reservations),
            activate=tuple(activate),
        )

    def _reject(
        self,
        profile: Profile,
        info: PodInfo,
        number: int,
        found: FeasibleNodes,
        extenders: ExtenderRound | NoExtenders,
    ) -> r.Decision:
        """No node is feasible: run PostFilter."""
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("PostFilter")
        extenders.offer_preemption_review(found)
        try:
            outcome = run_post_filter(self._cluster, profile, info, found)
        except AttemptPausedError as paused:
            return extenders.request_preemption_review(paused)
        result, rejected = outcome.result, found.rejected
        if rejected is not None:
            statuses = [rejected]
        else:
            statuses = [status for status, _ in found.counted(self._cluster.nodes)]
        for status in statuses:
            check_status(status.plugin, "Filter" if rejected is None else "PreFilter", status)
        plugins, pending = rejecting_plugins(statuses)
        gang = (GANG_INFEASIBLE_REASON,) if outcome.gang_infeasible else ()
        return r.Rejected(
            info.key,
            info.uid,
            number,
            fit_message(self._cluster, found, result.status.message),
            unschedulable_plugins=tuple(sorted({*plugins, *found.restricted_by, *gang})),
            pending_plugins=pending,
            nominated_node=result.nominated_node,
            victims=result.victims,
            evaluated_nodes=found.evaluated,
            cleared_nominations=result.cleared_nominations,
            requeue_now=result.requeue_now,
            released_claim=outcome.released_claim,
        )

    # -- pods that wait on Permit -------------------------------------------------------------

    def _expired_permits(self) -> tuple[r.Decision, ...]:
        """Reject waiting pods after their Permit timeout."""
        cluster = self._cluster
        next_ns = cluster.waiting_pods.next_deadline_ns()
        if next_ns is None or next_ns > cluster.now_ns:
            return ()
        for key, waiting in cluster.waiting.items():
            until_ns, plugin = min((at, name) for name, at in waiting.pending_until_ns.items())
            if until_ns <= cluster.now_ns:
                waited = _go_duration(until_ns - waiting.since_ns)
                message = f"rejected due to timeout after waiting {waited} at plugin {plugin}"
                cluster.waiting_pods.answer(PermitAnswer(key, plugin, message))
        return self._permit_answers()

    def _review_permits(self) -> tuple[r.Decision, ...]:
        """Let Permit plugins review the pods that wait for them."""
        for profile in self._cluster.profiles.values():
            for plugin in profile.permit_reviewers:
                try:
                    checked_call(WAITING_POD_REVIEW, plugin, plugin.review_waiting_pods)
                except PluginFailure as failure:
                    for waiting in self._cluster.waiting_pods.handles():
                        if plugin.name in waiting.pending:
                            waiting.reject(plugin.name, str(failure))
        return self._permit_answers()

    def _permit_answers(self) -> tuple[r.Decision, ...]:
        """Decisions from the first answers about waiting pods. The others remain for the next
        round: folding a decision takes time if many pods wait for its event."""
        waiting_pods = self._cluster.waiting_pods
        answers = waiting_pods.answers[:MAX_ANSWERS]
        if not answers:
            return ()
        waiting = waiting_pods.waiting
        pending = {a.key: {*waiting[a.key].pending_until_ns} for a in answers}
        decisions: list[r.Decision] = []
        for answer in answers:
            plugins = pending.get(answer.key)
            if plugins is None:
                continue  # an earlier answer was final
            uid = waiting[answer.key].info.uid
            if answer.message is not None:
                # As in kube-scheduler, any plugin may reject; only one that is waited for may
                # allow.
                del pending[answer.key]
                decisions.append(r.PermitRejected(answer.key, uid, answer.plugin, answer.message))
            elif answer.plugin in plugins:
                plugins.remove(answer.plugin)
                decisions.append(r.PermitAllowed(answer.key, uid, answer.plugin))
                if not plugins:
                    # As in kube-scheduler, answers about an allowed pod are ignored.
                    del pending[answer.key]
        return tuple(decisions)


def open_circuit_message(circuit: Circuit, plugin: str) -> str:
    """The pod condition's message while the circuit breaker of a required plugin is open."""
    spec = circuit.spec
    window, rest = (
        _go_duration(round(seconds * NS_PER_S)) for seconds in (spec.window_s, spec.open_s)
    )
    return (
        f"circuit breaker of plugin {plugin} is open for {rest}: {spec.failures} failures within"
        f" {window}, or another one since"
    )


def _go_duration(duration_ns: int) -> str:
    """A duration under one hour as Go formats it: ``500ms``, ``1.5s``, ``15m0s``."""
    minutes, rest_ns = divmod(duration_ns, 60 * NS_PER_S)
    if minutes:
        return f"{minutes}m{rest_ns / NS_PER_S:g}s"
    return format_duration(timedelta(microseconds=rest_ns // 1000))


def _rejected_by(assigned: r.Assigned, status: Status, point: str) -> r.Decision:
    """The decision if Reserve or Permit rejects the pod. Raises :class:`PluginFailure` for an
    error."""
    check_status(status.plugin, point, status)
    if not status.is_rejection:
        raise error_answer(status.plugin, point, status.message or status.code.title)
    pending = (status.plugin,) if status.code is Code.PENDING else ()
    return r.Rejected(
        assigned.key,
        assigned.uid,
        assigned.attempt,
        status.message,
        unschedulable_plugins=() if pending else (status.plugin,),
        pending_plugins=pending,
        evaluated_nodes=assigned.evaluated_nodes,
    )


def _permit_timeout_s(plugin: PermitPlugin, answer: PermitResult) -> float:
    """How long the pod waits at most. Raises :class:`PluginFailure` for an invalid timeout."""
    try:
        if not answer.timeout_s >= 0:
            raise PluginFailure(plugin.name, "Permit", f"a timeout of {answer.timeout_s} s")
        return min(answer.timeout_s, MAX_PERMIT_TIMEOUT_S)
    except TypeError as error:
        raise invalid_answer(plugin.name, "Permit", error) from error


def _checked_keys(plugin: PermitPlugin, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of pods to activate. Raises :class:`PluginFailure` if they cannot be recorded."""
    try:
        checked = tuple(keys)
        _encode(checked)
        if not all(isinstance(key, str) for key in checked):
            raise TypeError("a key to activate is not a str")
    except Exception as error:
        raise invalid_answer(plugin.name, "Permit", error) from error
    return checked


def _as_recorded(plugin: ReservePlugin, reservation: dict[str, Any]) -> dict[str, Any]:
    """The reservation as a replay reads it from the journal, so that live and replay use the same
    value."""
    try:
        recorded: dict[str, Any] = msgspec.json.decode(_encode(reservation))
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginFailure(plugin.name, "Reserve", f"reservation is not JSON: {error}") from None
    return recorded
