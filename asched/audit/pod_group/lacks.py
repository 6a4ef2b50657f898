"""What each domain lacks for a group that does not fit: resources, or nodes that accept its pods.

Compared is the first member that does not fit, on the state with those members placed that do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from asched.audit.pod_group.forms import DomainShortage, RejectedNodes
from asched.audit.pod_group.trial import GroupTrial, TriedGroup, placed_in
from asched.audit.unblock import amount_text
from asched.cycle.attempt import Attempt
from asched.cycle.feasible_nodes import FeasibleNodes
from asched.framework.nodes import BoolColumn
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.group_cycle.member_pass import PassResult
from asched.group_cycle.placement_choice import TriedPlacement, rows_within
from asched.model.requests import PODS
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.node_resources.fit import TOO_MANY_PODS, NodeResourcesFit
from asched.state import records as r
from asched.state.node_table import NodeTable

_MAX_SHAPES: Final = 3
"""Kinds of members for which nodes are screened."""
_NAMES: Final = 5
_ROWS: Final = 20
_REASONS: Final = 6
_DIAGNOSED: Final = 100
"""Nodes with devices to compare with the requests."""
_CHOSEN: Final = ("NodeAffinity", "TaintToleration", "NodeUnschedulable")
"""Filters for which somebody chose the nodes. They are the reason only if no other filter is."""
_NODES: Final = "node(s) "
_INSUFFICIENT: Final = "Insufficient "


@dataclass(slots=True)
class DomainLack:
    """What one domain lacks."""

    name: str
    nodes: int
    fits: int
    plugin: str = ""
    """The plugin that rejects most nodes; empty if all pending members fit."""
    reason: str = ""
    """Its most frequent reason."""
    reason_nodes: int = 0
    free: dict[str, int] = field(default_factory=dict)
    """What nodes that accept the pods have, of the resources that the group requests."""
    short: dict[str, int] = field(default_factory=dict)
    """What of the requests of all missing members exceeds that."""
    insufficient: tuple[str, ...] = ()
    """The resources that single nodes lack, the most frequent first."""
    rejections: tuple[RejectedNodes, ...] = ()

    @property
    def rejection(self) -> str:
        """Why nodes reject the pods, in words: ``3 of 4 nodes had untolerated taint(s)``."""
        if not self.nodes or not self.reason_nodes:
            return self.reason
        nodes, reason = f"{self.reason_nodes} of {self.nodes} nodes", self.reason
        if reason.startswith(_NODES):
            return f"{nodes} {reason.removeprefix(_NODES)}"
        return f"{nodes}: {reason}"

    @property
    def by_resources(self) -> bool:
        return self.plugin == NodeResourcesFit.name


def demand(pods: Sequence[PodInfo]) -> dict[str, int]:
    """The requests of pods together."""
    total: Counter[str] = Counter()
    for pod in pods:
        total.update({name: number for name, number in pod.shape.requests.items() if number})
    total[PODS] = len(pods)
    return dict(total)


class LackFinder:
    """Finds what domains lack for the members of one trial."""

    def __init__(self, trial: GroupTrial, found: TriedGroup, missing: int) -> None:
        """``missing``: how many members need a node."""
        self._trial = trial
        self.found = found
        self.missing = missing
        self._passes = trial.passes(found.members)
        self._profile = trial.profile(found.members)
        needed = found.members.group.pending[:missing]
        self.demand = demand(needed)
        self.usable = self._usable_rows(needed)
        """By row, whether only a lack of resources may keep some member off the node."""

    def lacks(self, tried: Sequence[TriedPlacement]) -> list[DomainLack]:
        """By domain, that in which most members fit first."""
        found = [self._lack(one) for one in tried]
        return sorted(found, key=lambda lack: (-lack.fits, sum(lack.short.values()), lack.name))

    def _usable_rows(self, pods: Sequence[PodInfo]) -> BoolColumn:
        cluster = self._trial.state
        usable = np.zeros(cluster.nodes.size, np.bool_)
        for pod in [*{pod.shape: pod for pod in pods}.values()][:_MAX_SHAPES]:
            screened = self._screen(pod)
            if screened is None or screened.rejected is not None:
                continue
            findings = screened.findings
            fit = np.array([s.plugin == NodeResourcesFit.name for s in findings.statuses], np.bool_)
            accepted = findings.passing | fit[findings.code]
            usable |= accepted & screened.considered(cluster.nodes) & cluster.nodes.alive
        return usable

    def _screen(self, pod: PodInfo, within: BoolColumn | None = None) -> FeasibleNodes | None:
        """The filters' results for a pod on the state as it is; None if a plugin fails."""
        trial = self._trial
        try:
            attempt = Attempt(trial.state, self._profile, pod, trial.changeable.cache, within)
            return attempt.find_feasible_nodes(limit_nodes=False)
        except PluginFailure:
            return None

    def _lack(self, tried: TriedPlacement) -> DomainLack:
        placement, result = tried
        lack = DomainLack(placement.name, len(placement.rows), result.placed)
        rows = placement.rows[self.usable[placement.rows]]
        table = self._trial.state.nodes
        for resource, needed in self.demand.items():
            if resource == PODS:
                free = table.allowed_pods[rows] - table.pod_count[rows]
            else:
                free = table.allocatable(resource)[rows] - table.requested(resource)[rows]
            lack.free[resource] = int(np.maximum(free, 0).sum())
            if lack.free[resource] < needed:
                lack.short[resource] = needed - lack.free[resource]
        unplaced = next((member for member in result.members if not member.fits), None)
        if unplaced is not None:
            decision = unplaced.decision
            self._reject(lack, tried, unplaced.queued.info)
            if not lack.plugin and isinstance(decision, r.Rejected):
                plugins = (*decision.unschedulable_plugins, *decision.pending_plugins, "")
                lack.plugin, lack.reason = plugins[0], decision.message
        return lack

    def _reject(self, lack: DomainLack, tried: TriedPlacement, pod: PodInfo) -> None:
        """Add why the pod does not fit next to the placed members."""
        state, trial = self._trial.state, self._passes.trial
        within = rows_within(state, tried.placement)
        with trial.members():
            for member in tried.result.members:
                if member.fits:
                    assigned = member.decision
                    assert isinstance(assigned, r.Assigned), "the pass had no preemption"
                    trial.assume(member.queued.info, member.node, assigned)
            screened = self._screen(pod, within)
            if screened is None:
                return
            if screened.rejected is not None:
                lack.plugin, lack.reason = screened.rejected.plugin, screened.rejected.message
                lack.rejections = (RejectedNodes(lack.nodes, lack.plugin, lack.reason),)
                return
            self._add_rejections(lack, screened, tried.result)
            if lack.plugin == DynamicResources.name:
                self._add_devices(lack, tried, pod)

    def _add_rejections(
        self, lack: DomainLack, screened: FeasibleNodes, result: PassResult
    ) -> None:
        table = self._trial.state.nodes
        within = table.alive if screened.within is None else screened.within
        every = _Rejections(screened, table, within)
        ordered = [RejectedNodes(n, *reason) for reason, n in every.by_reason.most_common()]
        lack.rejections = tuple(ordered[:_REASONS])
        # A node that the group itself fills is no obstacle; the others are.
        apart = within.copy()
        placed = (table.row_of(node) for node in placed_in(result))
        apart[[row for row in placed if row is not None]] = False
        others = _Rejections(screened, table, apart)
        by_plugin = (others if others.by_plugin else every).by_plugin
        if not by_plugin:
            return
        accepted = {name: nodes for name, nodes in by_plugin.items() if name not in _CHOSEN}
        by_plugin = Counter(accepted) or by_plugin
        lack.plugin = by_plugin.most_common(1)[0][0]
        own = [one for one in ordered if one.plugin == lack.plugin]
        lack.reason, lack.reason_nodes = own[0].reason, own[0].nodes
        lack.insufficient = tuple(
            PODS if one.reason == TOO_MANY_PODS else one.reason.removeprefix(_INSUFFICIENT)
            for one in own
        )

    def _add_devices(self, lack: DomainLack, tried: TriedPlacement, pod: PodInfo) -> None:
        """Replace the plugin's reason by the request that no node satisfies."""
        plugin = self._profile.plugins[DynamicResources.name]
        assert isinstance(plugin, DynamicResources), "the name is that of the plugin"
        diagnosis, table = plugin.diagnoses(pod), self._trial.state.nodes
        most: dict[tuple[str, str, str], tuple[int, int]] = {}
        for row in tried.placement.rows[:_DIAGNOSED].tolist():
            found = diagnosis(table.names[row])
            for request in found.requests if found is not None else ():
                if request.wanted is not None:
                    key = request.claim, request.request, request.matching
                    known = most.get(key, (request.wanted, 0))[1]
                    most[key] = request.wanted, max(known, request.suitable)
        lacking = [(key, *both) for key, both in most.items() if both[1] < both[0]]
        if lacking:
            (claim, name, matching), wanted, suitable = lacking[0]
            what = f" ({matching})" if matching else ""
            lack.reason_nodes = 0
            lack.reason = (
                f"request {name} of claim {claim} needs {wanted} devices{what}; no node has more"
                f" than {suitable} left"
            )

    def shortages(self, lacks: Sequence[DomainLack]) -> Iterator[DomainShortage]:
        """Domains that lack the same, in one row."""
        rows: dict[tuple[int, str, tuple[tuple[str, int], ...]], list[DomainLack]] = {}
        for lack in lacks:
            text, short = self.text(lack), lack.short if lack.by_resources else {}
            rows.setdefault((lack.fits, text, tuple(sorted(short.items()))), []).append(lack)
        for (fits, text, short_items), same in [*rows.items()][:_ROWS]:
            yield DomainShortage(
                domains=len(same),
                names=tuple(lack.name for lack in same if lack.name)[:_NAMES],
                nodes=sum(lack.nodes for lack in same),
                fits=fits,
                lacks=text,
                short=dict(short_items),
                rejections=same[0].rejections,
            )

    def text(self, lack: DomainLack) -> str:
        """What a domain lacks, in words."""
        if lack.by_resources:
            if lack.short:
                return f"{amounts_text(lack.short)} short"
            more = self.missing - lack.fits
            return f"no node has room for {more} more pod{'s' if more != 1 else ''}"
        if not lack.plugin:
            return "all pending pods fit"
        return lack.rejection or lack.plugin


class _Rejections:
    """How many of some rows each filter rejects, and why."""

    def __init__(self, screened: FeasibleNodes, table: NodeTable, rows: BoolColumn) -> None:
        self.by_plugin: Counter[str] = Counter()
        self.by_reason: Counter[tuple[str, str]] = Counter()
        considered = rows & screened.considered(table)
        for status, number in screened.findings.counted(considered):
            self._add(status.plugin, status.reasons, number)
        excluded = int(np.count_nonzero(rows & ~considered))
        if excluded:
            by = ", ".join(screened.restricted_by)
            self._add(by, screened.restricted_status.reasons, excluded)

    def _add(self, plugin: str, reasons: Sequence[str], nodes: int) -> None:
        self.by_plugin[plugin] += nodes
        for reason in reasons:
            self.by_reason[plugin, reason] += nodes


def amounts_text(amounts: Mapping[str, int]) -> str:
    """``4 nvidia.com/gpu, 2 cpu``; pods only if nothing else is."""
    named = {name: number for name, number in amounts.items() if name != PODS} or amounts
    return ", ".join(f"{amount_text(name, number)} {name}" for name, number in named.items())
