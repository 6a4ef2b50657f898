"""The decisions that end an attempt: Reserve and Permit for a chosen node, or a rejection."""

from __future__ import annotations

from typing import Any

import msgspec

from asched.cycle.feasible_nodes import FeasibleNodes, fit_message
from asched.cycle.post_filter import PostFilterOutcome
from asched.framework.interface import PermitPlugin, PermitResult, ReservePlugin
from asched.framework.pod_groups import GANG_INFEASIBLE_REASON
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.diagnosis import rejecting_plugins
from asched.framework.runtime.plugin_calls import (
    PERMIT,
    RESERVE,
    FilterError,
    PluginFailure,
    check_status,
    checked_call,
    error_answer,
    invalid_answer,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.model.quantity import NS_PER_S
from asched.state import records as r
from asched.state.cluster import ClusterState

_encode = msgspec.json.Encoder().encode

MAX_PERMIT_TIMEOUT_S = 15 * 60.0
"""The longest time that a Permit plugin can make a pod wait (kube-scheduler's ``maxTimeout``)."""


def reserve_and_permit(
    cluster: ClusterState,
    profile: Profile,
    info: PodInfo,
    found: FeasibleNodes,
    decision: r.Assigned,
) -> r.Assigned | r.Rejected:
    """Call Reserve and Permit plugins for the chosen node. Raises :class:`PluginFailure`."""
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
            waits.append(r.PermitWait(permit.name, cluster.now_ns + timeout_ns))
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


def rejection(
    cluster: ClusterState, queued: QueuedPod, found: FeasibleNodes, outcome: PostFilterOutcome
) -> r.Rejected:
    """The decision if no node is feasible. Raises :class:`PluginFailure` for an invalid status."""
    info = queued.info
    result, rejected = outcome.result, found.rejected
    if rejected is not None:
        statuses = [rejected]
    else:
        statuses = [status for status, _ in found.counted(cluster.nodes)]
    for status in statuses:
        check_status(status.plugin, "Filter" if rejected is None else "PreFilter", status)
    plugins, pending = rejecting_plugins(statuses)
    gang = (GANG_INFEASIBLE_REASON,) if outcome.gang_infeasible else ()
    return r.Rejected(
        info.key,
        info.uid,
        queued.attempts + 1,
        fit_message(cluster, found, result.status.message),
        unschedulable_plugins=tuple(sorted({*plugins, *found.restricted_by, *gang})),
        pending_plugins=pending,
        nominated_node=result.nominated_node,
        victims=result.victims,
        evaluated_nodes=found.evaluated,
        cleared_nominations=result.cleared_nominations,
        requeue_now=result.requeue_now,
        released_claim=outcome.released_claim,
        long_search=found.long_search,
        search_steps=found.search_steps,
    )


def long_search_of(failure: PluginFailure) -> int:
    """The steps of a long search for devices in an attempt that failed; 0 if there was none."""
    found = failure.found if isinstance(failure, FilterError) else None
    return found.long_search if isinstance(found, FeasibleNodes) else 0


def _rejected_by(assigned: r.Assigned, status: Status, point: str) -> r.Rejected:
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
        long_search=assigned.long_search,
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
