"""``decisions = decide(state)``: pure and synchronous.

The state holds everything: the present time, the seed, the queue. The same records give the same
state and so the same decisions. The caller folds each decision before it asks for the next one.
"""

from __future__ import annotations

import numpy as np

from asched.cycle.attempt import Attempt, Screening, choose
from asched.cycle.shape_cache import ShapeCache
from asched.framework.findings import histogram, rejecting_plugins
from asched.framework.interface import PostFilterResult
from asched.framework.plugin_calls import PluginFailure, call
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.profile import Profile
from asched.framework.status import Code, Status
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.queue import NS_PER_S
from asched.state.records import (
    Assigned,
    AttemptFailed,
    Decision,
    PermitAllowed,
    PermitHold,
    PermitRejected,
    Rejected,
    Reservation,
)

NO_NODES = "no nodes available to schedule pods"


class Decider:
    """Decides over one state. Holds a cache of shared answers, which changes no decision."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._cache = ShapeCache(cluster.nodes)

    def next(self) -> tuple[Decision, ...]:
        """The next decisions, empty where there is nothing to decide now.

        More than one come together only where a Permit plugin, asked about one pod, spoke about
        others that it holds. All are to be folded before the next call.
        """
        due = self._due_permits()
        if due:
            return due
        queued = self._cluster.queue.head()
        if queued is None:
            return ()
        profile = self._cluster.profiles[queued.info.pod.spec.scheduler_name]
        decision = self._decide(profile, queued)
        return (decision, *self._permit_answers(profile))

    # -- one pod ------------------------------------------------------------------------------

    def _decide(self, profile: Profile, queued: QueuedPod) -> Decision:
        info, attempt_number = queued.info, queued.attempts + 1
        try:
            return self._attempt(profile, info, attempt_number)
        except PluginFailure as failure:
            return AttemptFailed(info.key, info.uid, attempt_number, failure.plugin, str(failure))

    def _attempt(self, profile: Profile, info: PodInfo, number: int) -> Decision:
        cluster = self._cluster
        if not cluster.nodes.cluster_size:
            return Rejected(info.key, info.uid, number, NO_NODES)
        attempt = Attempt(cluster, profile, info, self._cache)
        screening = attempt.screen(nominated=cluster.nominator.node_of(info.key))
        if not screening.count:
            return self._no_node(profile, info, number, screening)
        score, best = 0, screening.rows if screening.count == 1 else None
        if best is None:
            score, best = attempt.best(screening)
        row = choose(best, cluster.seed, info.uid, number)
        decision = Assigned(
            info.key,
            info.uid,
            cluster.nodes.names[row],
            number,
            feasible=screening.count,
            score=score,
            ties=len(best),
            examined=screening.examined,
        )
        return self._reserve_and_permit(profile, info, screening, decision)

    def _reserve_and_permit(
        self, profile: Profile, info: PodInfo, screening: Screening, decision: Assigned
    ) -> Decision:
        if not profile.reserve and not profile.permit:
            return decision
        reservations: list[Reservation] = []
        for plugin in profile.reserve:
            result = call(plugin, "Reserve", plugin.reserve, screening.state, info, decision.node)
            if not result.status.is_success:
                return _turned_down(
                    info, decision.attempt, result.status.by(plugin.name), "Reserve"
                )
            if result.note is not None:
                reservations.append(Reservation(plugin.name, result.note))
        holds: list[PermitHold] = []
        for permit in profile.permit:
            answer = call(permit, "Permit", permit.permit, screening.state, info, decision.node)
            status = answer.status.by(permit.name)
            if status.code is Code.WAIT:
                deadline_ns = self._cluster.now_ns + round(answer.timeout_s * NS_PER_S)
                holds.append(PermitHold(permit.name, deadline_ns))
            elif not status.is_success:
                return _turned_down(info, decision.attempt, status, "Permit")
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
        )

    # -- when no node fits --------------------------------------------------------------------

    def _no_node(
        self, profile: Profile, info: PodInfo, number: int, screening: Screening
    ) -> Decision:
        result = post_filter(self._cluster, profile, info, screening)
        rejection = screening.rejected
        if rejection is not None:
            statuses = [rejection]
        else:
            alive = self._cluster.nodes.alive
            statuses = [status for status, _ in screening.findings.counted(alive)]
        refused, pending = rejecting_plugins(statuses)
        plugins = tuple(sorted({*refused, *screening.narrowed_by}))
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
        )

    # -- held pods ----------------------------------------------------------------------------

    def _due_permits(self) -> tuple[Decision, ...]:
        """Held pods whose time is up."""
        cluster = self._cluster
        return tuple(
            PermitRejected(
                key,
                waiting.info.uid,
                plugin,
                f"rejected due to timeout at plugin {plugin}",
            )
            for key, waiting in cluster.waiting.items()
            for plugin, until_ns in sorted(waiting.pending_until_ns.items())[:1]
            if min(waiting.pending_until_ns.values()) <= cluster.now_ns
        )

    def _permit_answers(self, profile: Profile) -> tuple[Decision, ...]:
        """What plugins said, during the attempt, about pods they hold."""
        handle = profile.handle
        if not isinstance(handle, ProfileHandle) or not handle.answers:
            return ()
        answers, handle.answers = handle.answers, []
        pending = {key: set(w.pending_until_ns) for key, w in self._cluster.waiting.items()}
        decisions: list[Decision] = []
        for answer in answers:
            held_by = pending.get(answer.key, set())
            if answer.plugin not in held_by:
                continue  # settled by an earlier answer, or not this plugin's to say
            uid = self._cluster.waiting[answer.key].info.uid
            if answer.message is None:
                held_by.remove(answer.plugin)
                decisions.append(PermitAllowed(answer.key, uid, answer.plugin))
            else:
                del pending[answer.key]
                decisions.append(PermitRejected(answer.key, uid, answer.plugin, answer.message))
        return tuple(decisions)


def post_filter(
    cluster: ClusterState, profile: Profile, info: PodInfo, screening: Screening
) -> PostFilterResult:
    """Ask PostFilter plugins in order until one made room, or one answered that nothing will
    (``RunPostFilterPlugins``). Raises :class:`PluginFailure` for a plugin that raises.
    """
    reasons: list[str] = []
    nominated: str | None = None
    for plugin in profile.post_filter:
        refused = RefusedNodes(cluster, screening)
        result = call(plugin, "PostFilter", plugin.post_filter, screening.state, info, refused)
        if result.status.is_success:
            return result
        if result.status.code is not Code.UNSCHEDULABLE:
            # The plugin is sure, or failed: no other is asked, and its words are what is said. An
            # error here does not fail the attempt; the pod is unschedulable as before.
            return PostFilterResult(Status.unschedulable(*result.status.reasons))
        reasons.extend(result.status.reasons)
        if result.nominated_node is not None:
            nominated = result.nominated_node
    return PostFilterResult(Status.unschedulable(*reasons), nominated)


class RefusedNodes:
    """Why nodes were refused, for PostFilter plugins."""

    def __init__(self, cluster: ClusterState, screening: Screening) -> None:
        self._table = cluster.nodes
        self._screening = screening

    def status(self, node_name: str) -> Status | None:
        row = self._table.row_of(node_name)
        if row is None:
            return None
        screening = self._screening
        if screening.rejected is not None:
            return screening.rejected
        if screening.node_names is not None and node_name not in screening.node_names:
            return narrowed_status(screening)
        return screening.findings.status(row)

    def names(self, *, unresolvable: bool) -> list[str]:
        found = []
        for row in np.flatnonzero(self._table.alive).tolist():
            status = self.status(self._table.names[row])
            if (
                status is not None
                and (status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE) is unresolvable
            ):
                found.append(self._table.names[row])
        return found


def narrowed_status(screening: Screening) -> Status:
    """What is said of nodes that PreFilter left out."""
    by = ", ".join(screening.narrowed_by)
    return Status.unresolvable(f"node(s) didn't satisfy plugin(s) [{by}]")


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
    looked_at = cluster.nodes.alive
    counted: list[tuple[tuple[str, ...], int]] = []
    if screening.node_names is not None:
        named = np.zeros(cluster.nodes.size, np.bool_)
        rows = [cluster.nodes.row_of(name) for name in screening.node_names]
        named[[row for row in rows if row is not None]] = True
        left_out = int((looked_at & ~named).sum())
        if left_out:
            counted.append((narrowed_status(screening).reasons, left_out))
        looked_at = looked_at & named
    counted.extend((s.reasons, number) for s, number in screening.findings.counted(looked_at))
    return histogram(counted)


def _turned_down(info: PodInfo, attempt: int, status: Status, point: str) -> Decision:
    if status.is_rejection:
        pending = (status.plugin,) if status.code is Code.PENDING else ()
        plugins = () if pending else (status.plugin,)
        return Rejected(info.key, info.uid, attempt, status.message, plugins, pending)
    raise PluginFailure(status.plugin, point, status.message)
