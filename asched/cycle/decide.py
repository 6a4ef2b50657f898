"""The decisions for single pods: a pure function of the state, which includes time and seed."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.attempt_decisions import long_search_of, rejection, reserve_and_permit
from asched.cycle.extenders import ExtenderRound, NoExtenders, extender_round
from asched.cycle.feasible_nodes import NO_NODES, FeasibleNodes
from asched.cycle.gated_groups import GatedGroups
from asched.cycle.node_selection import BestNodes, select_node
from asched.cycle.pod_groups import decide_group_conditions
from asched.cycle.post_filter import run_post_filter
from asched.cycle.precheck import precheck
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.extenders import AttemptPausedError, ExtenderFailureError
from asched.framework.runtime.observation import OBSERVATION, CallObserver, to_printable
from asched.framework.runtime.plugin_calls import (
    WAITING_POD_REVIEW,
    PluginFailure,
    checked_call,
)
from asched.framework.runtime.profile import Profile
from asched.model.quantity import NS_PER_S, format_duration
from asched.state import records as r
from asched.state.circuits import Circuit
from asched.state.cluster import ClusterState
from asched.state.waiting_pods import PermitAnswer

_encode = msgspec.json.Encoder().encode

MAX_ANSWERS = 128
"""Answers about waiting pods that become decisions in one round."""


class AttemptObserver(CallObserver, Protocol):
    """Observes some of the attempts."""

    def begin(self, pod: PodInfo, attempt: int) -> bool:
        """Called when an attempt begins. Returns whether to observe it."""

    def end(self, decision: r.Decision) -> None:
        """Called with the decision of an observed attempt."""


class GroupDecisions(Protocol):
    """Decides whole pod groups."""

    def decide(self, profile: Profile, head: QueuedPod) -> tuple[r.Decision, ...]:
        """The decisions about the group of a pod; empty if it is in none."""


class AttemptMarker(Protocol):
    """Notes the pod in hand."""

    def begin(self, pod: PodInfo) -> None: ...

    def end(self) -> None: ...


class Decider:
    """Makes the decisions for one state. Its cache of shared answers changes no decision."""

    def __init__(self, cluster: ClusterState, observer: AttemptObserver | None = None) -> None:
        self._cluster = cluster
        self.cache = self._cache = ShapeCache(cluster.nodes)
        self._observer = observer
        self.marker: AttemptMarker | None = None
        self.gated = GatedGroups(cluster)
        self.groups: GroupDecisions | None = None
        """For profiles that schedule whole groups."""

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
            return self.gated.decide()
        profile = cluster.profiles[queued.info.pod.spec.scheduler_name]
        observer, marker = self._observer, self.marker
        if marker is not None:
            marker.begin(queued.info)
        if profile.group_cycle is not None and (grouped := self._decide_group(profile, queued)):
            if marker is not None:
                marker.end()
            return grouped
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

    def _decide_group(self, profile: Profile, head: QueuedPod) -> tuple[r.Decision, ...]:
        """Decide the group of a pod; empty if the pod has to be decided alone."""
        circuits = self._cluster.guards.circuits
        if self.groups is None or profile.missing or (circuits and circuits.blocking(profile)):
            return ()
        if precheck(self._cluster, head, head.attempts + 1) is not None:
            return ()
        return self.groups.decide(profile, head)

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
            decision = self._attempt(profile, queued)
            # A decision that cannot be recorded must not be folded. Encoding takes less than 1 us.
            _encode(decision)
            return decision
        except PluginFailure as failure:
            plugin = "" if failure.by_object else failure.plugin
            long_search = long_search_of(failure)
            return r.AttemptFailed(
                info.key, info.uid, number, plugin, str(failure), long_search=long_search
            )
        except ExtenderFailureError as failure:
            return r.AttemptFailed(info.key, info.uid, number, failure.plugin, str(failure))
        except AssertionError:
            raise  # the state is inconsistent
        except Exception as error:  # noqa: BLE001  an invalid answer
            why = f"a plugin's answer is invalid: {type(error).__name__}: {to_printable(error)}"
            return r.AttemptFailed(info.key, info.uid, number, "", why)

    def _attempt(self, profile: Profile, queued: QueuedPod) -> r.Decision:
        cluster, info, number = self._cluster, queued.info, queued.attempts + 1
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
            return self._reject(profile, queued, found, extenders)
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
            long_search=found.long_search,
        )
        if not profile.reserve and not profile.permit:
            return decision
        return reserve_and_permit(cluster, profile, info, found, decision)

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

    def _reject(
        self,
        profile: Profile,
        queued: QueuedPod,
        found: FeasibleNodes,
        extenders: ExtenderRound | NoExtenders,
    ) -> r.Decision:
        """No node is feasible: run PostFilter."""
        if OBSERVATION.calls is not None:
            OBSERVATION.calls.enter("PostFilter")
        extenders.offer_preemption_review(found)
        try:
            outcome = run_post_filter(self._cluster, profile, queued.info, found)
        except AttemptPausedError as paused:
            return extenders.request_preemption_review(paused)
        return rejection(self._cluster, queued, found, outcome)

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
    window, open_for = (
        _go_duration(round(seconds * NS_PER_S)) for seconds in (spec.window_s, spec.open_s)
    )
    return (
        f"circuit breaker of plugin {plugin} is open for {open_for}: {spec.failures} failures"
        f" within {window}, or another one since"
    )


def _go_duration(duration_ns: int) -> str:
    """A duration as Go formats it: ``500ms``, ``1.5s``, ``15m0s``, ``2h0m0s``."""
    minutes, rest_ns = divmod(duration_ns, 60 * NS_PER_S)
    if minutes:
        hours, minutes = divmod(minutes, 60)
        begin = f"{hours}h" if hours else ""
        return f"{begin}{minutes}m{rest_ns / NS_PER_S:g}s"
    return format_duration(timedelta(microseconds=rest_ns // 1000))
