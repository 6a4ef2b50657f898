"""PostFilter: run the plugins for a pod without a feasible node."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from asched.cycle.feasible_nodes import FeasibleNodes
from asched.cycle.pod_groups import gang_stays_incomplete
from asched.framework.cluster import PodRef
from asched.framework.interface import PostFilterPlugin, PostFilterResult, ReleasedClaim
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderFailureError
from asched.framework.runtime.plugin_calls import (
    POST_FILTER,
    check_status,
    checked_call,
    invalid_answer,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.state.cluster import ClusterState

_encode = msgspec.json.Encoder().encode


class PostFilterOutcome(NamedTuple):
    """The combined result of the PostFilter plugins."""

    result: PostFilterResult
    gang_infeasible: bool = False
    """A plugin's preemption was dropped, because the pod's gang would stay incomplete."""
    released_claim: ReleasedClaim | None = None


def run_post_filter(
    cluster: ClusterState, profile: Profile, info: PodInfo, found: FeasibleNodes
) -> PostFilterOutcome:
    """Run PostFilter plugins until one succeeds or returns Unresolvable (``RunPostFilterPlugins``).

    Raises :class:`PluginFailure` for a plugin that raises, and :class:`AttemptPausedError` if an
    extender has to review the victims first.
    """
    reasons: list[str] = []
    nominated: str | None = None
    requeue_now = gang_infeasible = False
    released: ReleasedClaim | None = None
    if profile.skipped:
        # Preemption runs all filters of the profile that are not skipped.
        found.state.skip_filter |= profile.skipped
    for plugin in profile.post_filter:
        statuses = RejectedNodeStatuses(cluster, found)
        answers = cluster.waiting_pods.answers
        try:
            result = checked_call(
                POST_FILTER, plugin, plugin.post_filter, found.state, info, statuses
            )
        except ExtenderFailureError as failure:
            result = PostFilterResult(Status.error(str(failure)))
        _check_result(plugin, result)
        released = released or result.released_claim
        if result.status.is_success:
            why = gang_stays_incomplete(cluster, profile, info, found)
            if not why:
                return PostFilterOutcome(_requeue(result, requeue_now), released_claim=released)
            # As in kube-scheduler, preemption for one pod of a group is dropped if the group fails.
            # The rejections of waiting pods by earlier plugins remain.
            cluster.waiting_pods.reset_answers(answers)
            reasons.append(why)
            nominated, gang_infeasible = "", True
            continue
        if result.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            return PostFilterOutcome(_requeue(result, requeue_now), gang_infeasible, released)
        if not result.status.is_rejection:
            # An error does not fail the attempt: the pod stays unschedulable.
            result = PostFilterResult(Status.unschedulable(*result.status.reasons))
            return PostFilterOutcome(_requeue(result, requeue_now), gang_infeasible, released)
        reasons.extend(result.status.reasons)
        requeue_now = requeue_now or result.requeue_now
        if result.nominated_node is not None:
            nominated = result.nominated_node
    result = PostFilterResult(Status.unschedulable(*reasons), nominated, requeue_now=requeue_now)
    return PostFilterOutcome(result, gang_infeasible, released)


def _requeue(result: PostFilterResult, requeue_now: bool) -> PostFilterResult:
    """The result, with a retry without backoff if an earlier plugin made room for the pod."""
    if not requeue_now or result.requeue_now:
        return result
    return msgspec.structs.replace(result, requeue_now=True)


def _check_result(plugin: PostFilterPlugin, result: PostFilterResult) -> None:
    """Raise :class:`PluginFailure` for a result that cannot be recorded."""
    check_status(plugin.name, "PostFilter", result.status)
    try:
        _encode(result)
        victims = (*result.victims, *result.cleared_nominations)
        if not all(isinstance(victim, PodRef) for victim in victims):
            raise TypeError("a victim is not a PodRef")
        if not isinstance(result.nominated_node, str | None):
            raise TypeError("the nominated node is not a str")
        if not isinstance(result.released_claim, ReleasedClaim | None):
            raise TypeError("the released claim is not a ReleasedClaim")
    except Exception as error:
        raise invalid_answer(plugin.name, "PostFilter", error) from error


class RejectedNodeStatuses:
    """Why nodes were rejected (``NodeToStatus``), for PostFilter plugins."""

    def __init__(self, cluster: ClusterState, found: FeasibleNodes) -> None:
        self._table = cluster.nodes
        self._found = found

    def status(self, node_name: str) -> Status | None:
        row = self._table.row_of(node_name)
        if row is None:
            return None
        found = self._found
        if found.rejected is not None:
            return found.rejected
        if found.node_names is not None and node_name not in found.node_names:
            return found.restricted_status
        return found.findings.status(row)

    def names(self, *, unresolvable: bool) -> list[str]:
        unresolvable_rows = self._mask({Code.UNSCHEDULABLE_AND_UNRESOLVABLE})
        mask = unresolvable_rows if unresolvable else self._mask(set(Code)) & ~unresolvable_rows
        return [self._table.names[row] for row in np.flatnonzero(mask).tolist()]

    def rows(self, code: Code) -> RowArray:
        return self._mask({code}).nonzero()[0]

    def _mask(self, codes: set[Code]) -> BoolColumn:
        """By row: whether the node was rejected with one of these codes."""
        alive, found = self._table.alive, self._found
        if found.rejected is not None:
            return alive & (found.rejected.code in codes)
        # Nodes that PreFilter excluded count as unresolvable.
        unresolvable = Code.UNSCHEDULABLE_AND_UNRESOLVABLE in codes
        counted = found.counted(self._table)
        if not unresolvable and not any(status.code in codes for status, _ in counted):
            return np.zeros(self._table.size, np.bool_)
        findings = found.findings
        matching = np.array([status.code in codes for status in findings.statuses], np.bool_)
        rejected = alive & ~findings.passing & matching[findings.code]
        considered = found.considered(self._table)
        return np.where(considered, rejected, alive) if unresolvable else rejected & considered
