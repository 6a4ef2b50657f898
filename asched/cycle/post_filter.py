"""PostFilter: what plugins do for a pod for which no node would do, and what they are told of the nodes.

What Reserve, Permit and PostFilter answer, looked at where it is answered: so that who gave what
cannot be recorded is named, and no other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from asched.cycle.attempt import Screening
from asched.cycle.gang_room import preempts_in_vain
from asched.framework.interface import (
    PermitPlugin,
    PermitResult,
    PostFilterPlugin,
    PostFilterResult,
    ReservePlugin,
    Victim,
)
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderFailureError
from asched.framework.runtime.plugin_calls import PluginFailure, ask, check_status, unusable
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.state.cluster import ClusterState

_encode = msgspec.json.Encoder().encode

MAX_PERMIT_TIMEOUT_S = 15 * 60.0
"""No Permit plugin holds a pod longer, whatever it asks for (kube-scheduler's ``maxTimeout``)."""


def permit_timeout_s(plugin: PermitPlugin, answer: PermitResult) -> float:
    """How long the plugin holds the pod. Raises :class:`PluginFailure`."""
    try:
        if not answer.timeout_s >= 0:
            raise PluginFailure(plugin.name, "Permit", f"a timeout of {answer.timeout_s} s")
        return min(answer.timeout_s, MAX_PERMIT_TIMEOUT_S)
    except TypeError as error:
        raise unusable(plugin.name, "Permit", error) from error


def check_keys(plugin: PermitPlugin, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of pods to activate. Raises :class:`PluginFailure` where they are none."""
    try:
        found = tuple(keys)
        _encode(found)
        if not all(isinstance(key, str) for key in found):
            raise TypeError("a key to activate that is no str")
    except Exception as error:
        raise unusable(plugin.name, "Permit", error) from error
    return found


def as_recorded(plugin: ReservePlugin, note: dict[str, Any]) -> dict[str, Any]:
    """The note as a replay will read it from the journal, so that both see the same."""
    try:
        recorded: dict[str, Any] = msgspec.json.decode(_encode(note))
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginFailure(plugin.name, "Reserve", f"note is not JSON: {error}") from None
    return recorded


def check_post_filter(plugin: PostFilterPlugin, answer: PostFilterResult) -> None:
    """Raises :class:`PluginFailure` for what cannot be recorded."""
    check_status(plugin.name, "PostFilter", answer.status)
    try:
        _encode(answer)
        if not all(isinstance(each, Victim) for each in (*answer.victims, *answer.displaced)):
            raise TypeError("a victim that is no Victim")
        if not isinstance(answer.nominated_node, str | None):
            raise TypeError("a nominated node that is no str")
    except Exception as error:
        raise unusable(plugin.name, "PostFilter", error) from error


class PostFilterOutcome(NamedTuple):
    """What came of asking PostFilter plugins."""

    result: PostFilterResult
    in_vain: bool = False
    """One made room, which was dropped: the pod's gang would be incomplete all the same."""


def post_filter(
    cluster: ClusterState, profile: Profile, info: PodInfo, screening: Screening
) -> PostFilterOutcome:
    """Ask PostFilter plugins in order until one made room, or one answered that nothing will
    (``RunPostFilterPlugins``). Raises :class:`PluginFailure` for a plugin that raises, and
    :class:`AttemptPausedError` where an extender is to be asked about preemption first.
    """
    reasons: list[str] = []
    nominated: str | None = None
    at_once = in_vain = False
    said = cluster.permits.answers
    if profile.left_out:
        # Preemption tries the pod against all filters of the profile but for those skipped.
        screening.state.skip_filter |= profile.left_out
    for plugin in profile.post_filter:
        refused = RejectedNodeStatuses(cluster, screening)
        try:
            result = ask(
                PostFilterResult, plugin, "PostFilter", plugin.post_filter, screening.state, info,
                refused,
            )  # fmt: skip
        except ExtenderFailureError as failure:
            result = PostFilterResult(Status.error(str(failure)))
        check_post_filter(plugin, result)
        if result.status.is_success:
            why = preempts_in_vain(cluster, profile, info, screening)
            if not why:
                return PostFilterOutcome(result)
            # As in kube-scheduler what one pod of a group found is dropped where the group fails.
            cluster.permits.hear_only(said)
            reasons.append(why)
            nominated, in_vain = "", True
            continue
        if result.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            # The plugin is sure: no other is asked, and its words are what is said.
            return PostFilterOutcome(result, in_vain)
        if not result.status.is_rejection:
            # So it is after an error, which does not fail the attempt: the pod is unschedulable as
            # before.
            result = PostFilterResult(Status.unschedulable(*result.status.reasons))
            return PostFilterOutcome(result, in_vain)
        reasons.extend(result.status.reasons)
        at_once = at_once or result.at_once
        if result.nominated_node is not None:
            nominated = result.nominated_node
    result = PostFilterResult(Status.unschedulable(*reasons), nominated, at_once=at_once)
    return PostFilterOutcome(result, in_vain)


class RejectedNodeStatuses:
    """Why nodes were refused, for PostFilter plugins."""

    def __init__(self, cluster: ClusterState, screening: Screening) -> None:
        self._cluster = cluster
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
        resolute = self._with({Code.UNSCHEDULABLE_AND_UNRESOLVABLE})
        rows = resolute if unresolvable else self._with(set(Code)) & ~resolute
        return [self._table.names[row] for row in np.flatnonzero(rows).tolist()]

    def rows(self, code: Code) -> RowArray:
        return self._with({code}).nonzero()[0]

    def _said(self, codes: set[Code]) -> bool:
        """Whether any node may have been refused with one of these codes."""
        if Code.UNSCHEDULABLE_AND_UNRESOLVABLE in codes:
            return True  # as all nodes that were not looked at
        return any(status.code in codes for status, _ in self._screening.counted(self._table))

    def _with(self, codes: set[Code]) -> BoolColumn:
        """Where a node was refused with one of these codes."""
        alive, screening = self._table.alive, self._screening
        if screening.rejected is not None:
            return alive & (screening.rejected.code in codes)
        if not self._said(codes):
            return np.zeros(self._table.size, np.bool_)
        findings = screening.findings
        sought = np.array([status.code in codes for status in findings.statuses], np.bool_)
        refused = alive & ~findings.passing & sought[findings.code]
        looked_at = screening.looked_at(self._table)
        if Code.UNSCHEDULABLE_AND_UNRESOLVABLE in codes:
            return np.where(looked_at, refused, alive)
        return refused & looked_at


def narrowed_status(screening: Screening) -> Status:
    """What is said of nodes that PreFilter left out."""
    by = " ".join(screening.narrowed_by)
    return Status.unresolvable(f"node(s) didn't satisfy plugin(s) [{by}]")
