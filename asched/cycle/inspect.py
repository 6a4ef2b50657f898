"""The complete result of an attempt, without effects, computed by the same code.

:class:`~asched.cycle.attempt.Attempt` skips what does not affect the decision. :func:`inspect` runs
each filter separately for every node, and computes scores even for a single feasible node.
"""

from __future__ import annotations

from enum import Enum
from typing import cast

import msgspec
import numpy as np

from asched.cycle.attempt import Attempt, PluginScores
from asched.cycle.decide import open_circuit_message
from asched.cycle.extenders import ExtenderRound
from asched.cycle.feasible_nodes import NO_NODES, FeasibleNodes, fit_message
from asched.cycle.post_filter import run_post_filter
from asched.cycle.precheck import refusal
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import EXTENDER, AttemptPausedError, ExtenderFailureError
from asched.framework.runtime.plugin_calls import (
    FilterError,
    PluginFailure,
    filter_nodes,
    gate_status,
)
from asched.framework.runtime.profile import Profile
from asched.framework.status import Status
from asched.state.cluster import ClusterState
from asched.state.records import ExtenderCallRequested


class AttemptOutcome(Enum):
    """How an attempt ends, in the terms of kube-scheduler's tests."""

    SCHEDULED = "scheduled"
    """At least one node is feasible. Reserve and Permit are not evaluated."""
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    """A PreEnqueue plugin gates the pod; nothing else runs."""
    SKIPPED = "skipped"
    """The pod is being deleted."""
    IGNORED = "ignored"
    """The pod belongs to another scheduler."""
    ERROR = "error"


class PreFilterInspection(msgspec.Struct, frozen=True):
    """The PreFilter phase."""

    skipped: tuple[str, ...]
    """Plugins with a Filter that does not run, sorted."""
    node_names: tuple[str, ...] | None = None
    """The only nodes to consider, sorted; None for all. May contain nodes that do not exist."""
    restricted_by: tuple[str, ...] = ()
    status: Status | None = None
    """The rejection that ended the attempt."""


class FilterInspection(msgspec.Struct, frozen=True):
    """The Filter phase. Nodes that are not listed pass."""

    plugins: dict[str, dict[str, Status]]
    """By plugin and node: the status of each filter for every node, without nominated pods."""
    nodes: dict[str, Status]
    """By node: the status of the first filter that rejects it, with the nominated pods added."""


class PluginScoring(msgspec.Struct, frozen=True):
    """One plugin's scores, aligned with :attr:`Inspection.feasible`."""

    weight: int
    raw: tuple[int, ...]
    normalized: tuple[int, ...]


class Inspection(msgspec.Struct, frozen=True):
    """The complete result of an attempt."""

    outcome: AttemptOutcome
    nodes: tuple[str, ...] = ()
    """Every node of the cluster, sorted."""
    pre_enqueue: dict[str, Status] = {}
    pre_filter: PreFilterInspection | None = None
    filter: FilterInspection | None = None
    """None where PreFilter ended the attempt."""
    feasible: tuple[str, ...] = ()
    """Sorted."""
    nominated_node_used: bool = False
    """The nominated node passed, so it is the only feasible node, although all were evaluated."""
    score_skipped: tuple[str, ...] = ()
    """Plugins with a Score that does not run, sorted."""
    scores: dict[str, PluginScoring] = {}
    total: tuple[int, ...] = ()
    """Sum of weighted normalized scores, aligned with :attr:`feasible`. :attr:`scores` contains the
    extenders' contribution under the name ``Extender``."""
    message: str = ""
    """The message of the pod's ``PodScheduled=False`` condition."""
    awaits_extender: bool = False
    """An extender's answer is missing, and the result does not include it."""
    refused: Status | None = None
    """The rejection before any plugin runs: the circuit breaker of a required plugin is open, or
    the pod is above a limit."""
    left_out: tuple[str, ...] = ()
    """Plugins that do not run because their circuit breakers are open, sorted."""


def inspect(cluster: ClusterState, profile: Profile, pod: PodInfo) -> Inspection:
    """What an attempt for ``pod`` would find now. Evaluates all nodes, and ignores
    ``percentageOfNodesToScore``."""
    names = tuple(sorted(name for name in cluster.nodes.names if name))
    if pod.pod.spec.scheduler_name != profile.scheduler_name:
        return Inspection(AttemptOutcome.IGNORED, names)
    for plugin in profile.pre_enqueue:
        if gated := gate_status(plugin, pod):
            return Inspection(
                AttemptOutcome.GATED, names, pre_enqueue={plugin.name: gated}, message=gated.message
            )
    if pod.pod.terminating:
        return Inspection(AttemptOutcome.SKIPPED, names)
    refused = refusal(cluster, pod)
    if refused is not None:
        return _refused(names, refused)
    circuits = cluster.guards.circuits
    if plugin_name := circuits.blocking(profile):
        why = open_circuit_message(
            circuits.circuit(profile.scheduler_name, plugin_name), plugin_name
        )
        return _refused(names, Status.unschedulable(why).by(plugin_name))
    profile = circuits.in_force(profile)
    try:
        if names:
            found = _Inspector(cluster, profile, pod, names).inspection()
        else:
            found = Inspection(AttemptOutcome.UNSCHEDULABLE, message=NO_NODES)
    except (PluginFailure, ExtenderFailureError) as failure:
        found = Inspection(AttemptOutcome.ERROR, names, message=str(failure))
    if not profile.skipped:
        return found
    return msgspec.structs.replace(found, left_out=tuple(sorted(profile.skipped)))


def _refused(names: tuple[str, ...], status: Status) -> Inspection:
    return Inspection(AttemptOutcome.UNSCHEDULABLE, names, message=status.message, refused=status)


class _Inspector:
    def __init__(
        self, cluster: ClusterState, profile: Profile, pod: PodInfo, names: tuple[str, ...]
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._pod = pod
        self._names = names
        # A new cache, so that the result does not depend on earlier attempts.
        self._attempt = Attempt(cluster, profile, pod, ShapeCache(cluster.nodes))
        queued = cluster.queue.find_queued(pod.key)
        number = 0 if queued is None else queued.attempts + 1
        self._extenders = ExtenderRound(cluster, profile, pod, number)
        self._awaits_extender = False

    def inspection(self) -> Inspection:
        try:
            return self._inspection()
        except FilterError as error:
            return self._failed(error)

    def _failed(self, error: FilterError) -> Inspection:
        found = cast(FeasibleNodes, error.found)
        return Inspection(
            AttemptOutcome.ERROR,
            self._names,
            pre_filter=_pre_filter(self._profile, found),
            filter=FilterInspection(self._each_filter(found), self._rejections(found)),
            message=str(error),
        )

    def _inspection(self) -> Inspection:
        nominated = self._cluster.nominator.node_of(self._pod.key)
        found = self._find_feasible_nodes(nominated)
        if found.nominated_used and not found.count:
            found = self._find_feasible_nodes("")
        pre_filter = _pre_filter(self._profile, found)
        filters = None
        if found.rejected is None:
            filters = FilterInspection(self._each_filter(found), self._rejections(found))
        if found.count:
            return self._scheduled(found, pre_filter, filters)
        post_filter_message = self._post_filter(found)
        return Inspection(
            AttemptOutcome.UNSCHEDULABLE,
            self._names,
            pre_filter=pre_filter,
            filter=filters,
            message=fit_message(self._cluster, found, post_filter_message),
            awaits_extender=self._awaits_extender,
        )

    def _find_feasible_nodes(self, nominated: str) -> FeasibleNodes:
        """The nodes that pass plugins and the extenders that have answered."""
        found = self._attempt.find_feasible_nodes(
            nominated=nominated, limit_nodes=False, all_reasons=True
        )
        self._awaits_extender = self._extenders.filter(found) is not None
        return found

    def _post_filter(self, found: FeasibleNodes) -> str:
        self._extenders.offer_preemption_review(found)
        # Answers about waiting pods must not take effect.
        with self._cluster.waiting_pods.discard_answers():
            try:
                outcome = run_post_filter(self._cluster, self._profile, self._pod, found)
            except AttemptPausedError:
                self._awaits_extender = True
                return ""
        return outcome.result.status.message

    def _each_filter(self, found: FeasibleNodes) -> dict[str, dict[str, Status]]:
        table, rejections = self._cluster.nodes, {}
        alive = np.flatnonzero(table.alive).tolist()
        for plugin in self._profile.filter:
            if plugin.name in found.state.skip_filter:
                continue
            result = filter_nodes(plugin, found.state, self._pod, table)
            by_node = {}
            for row in alive:
                status = result.status(row)
                if status is not None:
                    by_node[table.names[row]] = status.by(plugin.name)
            if by_node:
                rejections[plugin.name] = by_node
        return rejections

    def _rejections(self, found: FeasibleNodes) -> dict[str, Status]:
        table, rejections = self._cluster.nodes, {}
        for row in np.flatnonzero(table.alive & ~found.findings.passing).tolist():
            status = found.findings.status(row)
            if status is not None:
                rejections[table.names[row]] = status
        return rejections

    def _scheduled(
        self,
        found: FeasibleNodes,
        pre_filter: PreFilterInspection,
        filters: FilterInspection | None,
    ) -> Inspection:
        # As in an attempt, extenders score only if several nodes are feasible.
        extender_scores = self._extenders.prioritize(found) if found.count > 1 else None
        scoring = self._attempt.score(found)
        names = [self._cluster.nodes.names[row] for row in found.rows.tolist()]
        order = sorted(range(len(names)), key=names.__getitem__)
        feasible = tuple(names[index] for index in order)
        if isinstance(extender_scores, ExtenderCallRequested):
            self._awaits_extender = True
        elif extender_scores is not None:
            extra = extender_scores[found.rows]
            scoring.total = scoring.total + extra
            scoring.plugins.append(PluginScores(EXTENDER, 1, extra, extra))
        return Inspection(
            AttemptOutcome.SCHEDULED,
            self._names,
            pre_filter=pre_filter,
            filter=filters,
            feasible=feasible,
            nominated_node_used=found.nominated_used,
            score_skipped=scoring.skipped,
            scores={
                scores.plugin: PluginScoring(
                    scores.weight,
                    tuple(scores.raw[order].tolist()),
                    tuple(scores.normalized[order].tolist()),
                )
                for scores in scoring.plugins
            },
            total=tuple(scoring.total[order].tolist()),
            awaits_extender=self._awaits_extender,
        )


def _pre_filter(profile: Profile, found: FeasibleNodes) -> PreFilterInspection:
    rejected, names = found.rejected, found.node_names
    ran = [plugin.name for plugin in profile.pre_filter]
    if rejected is not None:
        # Shared answers also exist for plugins after the rejecting one.
        ran = ran[: ran.index(rejected.plugin)]
    return PreFilterInspection(
        skipped=tuple(sorted(found.state.skip_filter.intersection(ran))),
        node_names=None if names is None else tuple(sorted(names)),
        restricted_by=found.restricted_by,
        status=rejected,
    )
