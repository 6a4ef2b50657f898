"""Checks the decisions of group cycles by the records alone."""

from __future__ import annotations

from collections import Counter

from asched.framework.group_hierarchy import ancestors, children_by_parent, needed_children
from asched.framework.pod_groups import MemberStatus, group_of, key_of, rules_of
from asched.model.groups import CompositePodGroup, PodGroup
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.records import AnyRecord, Assigned, Rejected
from tests.fault_simulation.breach import demand


class GroupAudit:
    """Checks each cycle after its last decision. The state is that of the records so far."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._cycle: PodGroupAttempted | None = None
        self._group: PodGroupAttempted | None = None
        """The latest record of a group within the cycle."""
        self._decided: list[Assigned | Rejected] = []

    def before(self, record: AnyRecord) -> None:
        """The record will be folded. Raises BreachError."""
        if isinstance(record, PodGroupAttempted):
            if self._cycle is None or not record.root or record.root != self._cycle.group:
                self.end()
                self._cycle = record
            self._group = record
        elif isinstance(record, Assigned | Rejected) and record.grouped:
            demand(self._group is not None, f"{record.key} is decided without a group cycle")
            assert self._group is not None
            self._decided.append(record)
            self._check_member(self._group, record)
        elif isinstance(record, Assigned | Rejected):
            self.end()

    def end(self) -> None:
        """All decisions of the cycle are folded. Raises BreachError."""
        cycle, decided = self._cycle, self._decided
        self._cycle, self._decided = None, []
        if cycle is None or not decided:
            return
        if cycle.outcome is GroupOutcome.SCHEDULED:
            self._check_trees([each for each in decided if isinstance(each, Assigned)])
        if any(isinstance(each, Rejected) and each.victims for each in decided):
            self._check_beneficiary(cycle, [each for each in decided if isinstance(each, Rejected)])

    def _check_member(self, cycle: PodGroupAttempted, record: Assigned | Rejected) -> None:
        """Members run in the domain of the cycle, and evict only for a group that then runs."""
        if isinstance(record, Rejected):
            waits = cycle.outcome is GroupOutcome.WAITING
            demand(waits or not record.victims, f"{record.key} evicts pods, but {cycle.outcome}")
            return
        group = self._state.objects(PodGroup).get(cycle.group)
        key = "" if group is None else rules_of(group).topology_key
        if key:
            domain = self._domain(record.node, key)
            demand(domain == cycle.placement, f"{record.key} runs outside {cycle.placement}")

    def _domain(self, node: str, label: str) -> str | None:
        row = self._state.nodes.row_of(node)
        return None if row is None else self._state.nodes.node(row).labels.get(label)

    # -- trees --------------------------------------------------------------------------------

    def _check_trees(self, assigned: list[Assigned]) -> None:
        """Each tree with a new member has its minimum and, if it requires one, a common domain."""
        started: dict[str, list[Assigned]] = {}
        for each in assigned:
            key = group_of(self._state.pods[each.key].info.pod)
            group = None if key is None else self._state.objects(PodGroup).get(key.key)
            chain, problem = ancestors(self._state, group) if group is not None else ((), "")
            demand(not problem, f"{each.key} is assigned although {problem}")
            for composite in chain:
                started.setdefault(composite.key, []).append(each)
        for name, members in started.items():
            composite = self._state.objects(CompositePodGroup)[name]
            counted = sum(self._counts(child) for child in self._children(composite))
            needed = needed_children(composite)
            demand(counted >= needed, f"{name} is started with {counted} of {needed} children")
            label = rules_of(composite).topology_key
            if label:
                domains = {self._domain(each.node, label) for each in members}
                demand(len(domains) == 1 and None not in domains, f"{name} is started in {domains}")

    def _children(self, composite: CompositePodGroup) -> tuple[PodGroup | CompositePodGroup, ...]:
        return children_by_parent(self._state).get(composite.key, ())

    def _counts(self, group: PodGroup | CompositePodGroup) -> bool:
        if isinstance(group, CompositePodGroup):
            counted = sum(self._counts(child) for child in self._children(group))
            return counted >= needed_children(group)
        members = self._state.group_members(key_of(group))
        return members.count(MemberStatus.ASSIGNED) >= max(1, group.min_count)

    # -- victims ------------------------------------------------------------------------------

    def _check_beneficiary(self, cycle: PodGroupAttempted, rejected: list[Rejected]) -> None:
        """The members with a nominated node fit there without the victims, and without the pods
        that terminate or are evicted anyway."""
        state, gone = self._state, {victim.uid for each in rejected for victim in each.victims}
        targets = {each.key: node for each in rejected if (node := each.nominated_node)}
        demand(bool(targets), f"{cycle.group} evicts pods, but nominates no node")
        gone |= state.evictions.keys()
        for node in sorted({*targets.values()}):
            row = state.nodes.row_of(node)
            demand(row is not None, f"{cycle.group} preempts on {node}, which does not exist")
            assert row is not None
            used = Counter[str]()
            for key, target in targets.items():
                if target == node:
                    used.update(state.pods[key].info.shape.requests)
            for name, wanted in used.items():
                kept = wanted + sum(
                    entry.info.shape.requests.get(name, 0)
                    for entry in state.pods.values()
                    if entry.node == node
                    and entry.info.uid not in gone
                    and not entry.info.pod.terminating
                )
                offered = state.nodes.allocatable_on(row, name)
                demand(
                    kept <= offered,
                    f"{cycle.group} evicts pods of {node}, but {kept} of {offered} {name} remain",
                )
