"""Examines a group on a state: its members, a trial of the group, and the reason of the result."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from asched.audit.hypotheticals import ChangeableState
from asched.audit.pod_group.changes import ChangeSearch
from asched.audit.pod_group.forms import GroupReasonKind, PodGroupExplanation
from asched.audit.pod_group.lacks import LackFinder
from asched.audit.pod_group.reason import DominantReason, Situation, before_trial, of_lacks
from asched.audit.pod_group.trial import (
    MAX_TRIED,
    GroupTrial,
    MemberCounts,
    TriedGroup,
    count_members,
)
from asched.audit.timeline import queue_of, time_of
from asched.framework.group_hierarchy import tree_position
from asched.framework.pod_groups import (
    AnyPodGroup,
    GroupRules,
    PodGroupKey,
    find_group,
    group_of,
    rules_of,
)
from asched.framework.runtime.profile import PluginLoader
from asched.group_cycle.cycle import GROUP_UNSCHEDULABLE
from asched.group_cycle.decide import NO_EXTENDERS
from asched.group_cycle.members import CycleMembers
from asched.model.groups import PodGroup
from asched.state.cluster import ClusterState
from asched.state.group_records import GroupOutcome

WHOLE: Final = "groupCycle"
BY_POD: Final = "podByPod"
BY_SESSION: Final = "batchSession"
_MAX_PREEMPTING: Final = 20_000
"""Members that are tried with preemption, in all placements together."""
_VICTIMS: Final = 5


def find_key(state: ClusterState, key: str) -> PodGroupKey | None:
    """The group ``namespace/name``: one that exists before one that pods only name; None for
    neither."""
    both = PodGroupKey(key, True), PodGroupKey(key, False)
    known = [group for group in both if find_group(state, group) is not None]
    named = [group for group in both if state.groups.members(group).statuses]
    return next(iter([*known, *named]), None)


def explained(
    state: ClusterState, load: PluginLoader, seq: int, group: PodGroupKey, *, unblock: bool
) -> PodGroupExplanation:
    """Explains a group that exists or that pods name, after record ``seq``, without recorded
    attempts and sessions.

    The state must be a private copy. ``unblock`` searches the changes.
    """
    declared = find_group(state, group)
    counts = count_members(state, group)
    namespace, _, name = group.key.partition("/")
    found = PodGroupExplanation(
        namespace=namespace,
        name=name,
        seq=seq,
        at=time_of(state.date_ns),
        reason=GroupReasonKind.NO_POD_GROUP,
        sentence=f"PodGroup {group.key} does not exist, but {len(counts.entries)} pods name it",
        pods=len(counts.entries),
        with_node=counts.with_node,
        pending=counts.pending,
        gated=sum(map(len, counts.gated.values())),
    )
    if declared is None:
        return found
    found = _with_rules(found, state, declared, counts)
    if found.mode == BY_SESSION:
        waits = f"batch sessions of {found.scheduler_name} place its pods"
        return replace(found, reason=GroupReasonKind.BATCH_SESSION, sentence=waits)
    return _Examination(state, load, rules_of(declared), counts, unblock).run(found)


def group_of_pod(
    state: ClusterState, load: PluginLoader, seq: int, key: str
) -> PodGroupExplanation | None:
    """The explanation of a pod's group without changes; None if the pod is in no group."""
    group = group_of(state.pods[key].info.pod)
    return None if group is None else explained(state, load, seq, group, unblock=False)


def _with_rules(
    found: PodGroupExplanation, state: ClusterState, declared: AnyPodGroup, counts: MemberCounts
) -> PodGroupExplanation:
    rules = rules_of(declared)
    names = dict.fromkeys(entry.info.pod.spec.scheduler_name for entry in counts.entries)
    name = next((each for each in names if each in state.profiles), next(iter(names), ""))
    profile = state.profiles.get(name)
    mode = BY_SESSION if name in state.sessions else ""
    if profile is not None:
        mode = BY_POD if profile.group_cycle is None else WHOLE
    return replace(
        found,
        uid=rules.uid,
        kind=type(declared).__name__,
        mode=mode,
        scheduler_name=name,
        minimum=rules.min_count,
        priority=max([rules.priority, *(entry.info.priority for entry in counts.entries)]),
        topology_key=rules.topology_key,
    )


class _Examination:
    """Finds the reason and the changes of one group."""

    def __init__(
        self,
        state: ClusterState,
        load: PluginLoader,
        rules: GroupRules,
        counts: MemberCounts,
        unblock: bool,
    ) -> None:
        self._state = state
        self._counts = counts
        self._unblock = unblock
        missing = max(0, rules.min_count - counts.with_node) or max(1, counts.pending)
        self._now = Situation(rules, counts, missing)
        self._trial = GroupTrial(ChangeableState(state, load), rules.group, MAX_TRIED)
        self._search = ChangeSearch(self._trial, rules.min_count)
        self._notes: list[str] = []

    def run(self, found: PodGroupExplanation) -> PodGroupExplanation:
        found = replace(found, missing=self._now.missing if found.pending else 0)
        evicting = self._evicting()
        if evicting is not None:
            return self._result(found, evicting)
        early = before_trial(self._now)
        if early is not None:
            searched = early.kind in (GroupReasonKind.MISSING_MEMBERS, GroupReasonKind.GATED)
            changes = self._search.for_members() if searched and self._unblock else None
            return self._result(found, early, changes=changes)
        outside = self._tree_problem(found) or self._external(found)
        if outside is not None:
            return self._result(found, outside)
        members = self._trial.members()
        if members is None:
            text = "an extender has not answered yet for its pods"
            return self._result(found, DominantReason(GroupReasonKind.PLUGIN, text))
        if members.mixed:
            return self._result(
                found, DominantReason(GroupReasonKind.SCHEDULER_NAMES, members.mixed)
            )
        self._now = self._now._replace(rules=members.rules)
        if found.mode == BY_POD and found.topology_key:
            self._notes.append("pod by pod, topology constraints are not considered")
        tried = self._trial.attempt(members)
        found = replace(found, domains_tried=len(tried.tried))
        if tried.failed:
            kind = GroupReasonKind.ERROR if tried.tried else GroupReasonKind.DOMAIN
            return self._result(found, DominantReason(kind, tried.problem))
        if not tried.tried:
            return self._without_domain(found, tried)
        if tried.feasible:
            return self._result(found, self._fits(tried))
        return self._unschedulable(found, tried)

    def _result(
        self, found: PodGroupExplanation, why: DominantReason, **more: object
    ) -> PodGroupExplanation:
        if self._trial.limited:
            self._notes.append("the search for changes was ended early: the group is large")
        notes = tuple(self._notes)
        return replace(found, reason=why.kind, sentence=why.sentence, notes=notes, **more)

    # -- groups that are not tried ------------------------------------------------------------

    def _tree_problem(self, found: PodGroupExplanation) -> DominantReason | None:
        """What is wrong with the CompositePodGroups above it."""
        declared = find_group(self._state, self._now.rules.group)
        if found.mode != WHOLE or not isinstance(declared, PodGroup):
            return None
        root, _, problem = tree_position(self._state, declared)
        if root is not None:
            self._notes.append(f"CompositePodGroup {root.key} is not considered: it may not fit")
        return DominantReason(GroupReasonKind.PLUGIN, problem) if problem else None

    def _external(self, found: PodGroupExplanation) -> DominantReason | None:
        profile = self._state.profiles[found.scheduler_name]
        if not profile.external and not self._state.extenders:
            return None
        if found.mode == WHOLE:
            return DominantReason(GroupReasonKind.ERROR, NO_EXTENDERS)
        self._notes.append("extenders and external plugins are not evaluated")
        return None

    def _evicting(self) -> DominantReason | None:
        """The victims of its members that are still running."""
        keys = {entry.info.key for entry in self._counts.entries}
        victims = [
            eviction.victim.key
            for eviction in self._state.evictions.values()
            if eviction.preemptor.key in keys
        ]
        if not victims:
            return None
        text = f"waits until {_named(victims)} {'is' if len(victims) == 1 else 'are'} gone"
        return DominantReason(GroupReasonKind.PREEMPTS, f"{text}: evicted for it")

    def _without_domain(self, found: PodGroupExplanation, tried: TriedGroup) -> PodGroupExplanation:
        nodes, key = self._state.nodes.cluster_size, found.topology_key
        if not nodes:
            text = "the cluster has no nodes"
            return self._result(found, DominantReason(GroupReasonKind.NO_NODES, text))
        text = (
            tried.problem
            or f"needs one {self._now.level}; none of {nodes} nodes has the label {key}"
        )
        changes = self._search.without_domains(tried) if self._unblock else None
        why = DominantReason(GroupReasonKind.DOMAIN_LABEL, text)
        return self._result(found, why, changes=changes)

    # -- groups that are tried ----------------------------------------------------------------

    def _fits(self, tried: TriedGroup) -> DominantReason:
        best = max(tried.feasible, key=lambda one: one.result.placed)
        place = f" in {best.placement.name}" if best.placement.name else ""
        members = tried.members
        first = members.pending[0].info.key
        queue = queue_of(self._state.queue, first) or "active"
        text = (
            f"fits{place} now ({best.result.placed} of {len(members.pending)} pending pods);"
            f" waits for its next attempt in the {queue} queue"
        )
        return DominantReason(GroupReasonKind.FITS, text)

    def _unschedulable(self, found: PodGroupExplanation, tried: TriedGroup) -> PodGroupExplanation:
        finder = LackFinder(self._trial, tried, self._now.missing)
        lacks = finder.lacks(tried.tried)
        domains = tuple(finder.shortages(lacks))
        shown = sum(row.domains for row in domains)
        if shown < len(lacks):
            self._notes.append(f"{len(lacks) - shown} more domains are not listed")
        found = replace(found, domains=domains)
        preempting = self._preempting(tried)
        if preempting is not None:
            return self._result(found, preempting)
        why = of_lacks(self._now, lacks, finder.demand, self._priority_clause(tried.members))
        changes = None
        if self._unblock:
            changes = self._search.for_domains(finder, lacks)
        return self._result(found, why, changes=changes)

    def _lower(self, members: CycleMembers) -> bool:
        """Whether a pod on a node has a lower priority than the group."""
        own = self._own_priority(members)
        pods = self._state.pods.values()
        return any(entry.node and entry.info.priority < own for entry in pods)

    def _own_priority(self, members: CycleMembers) -> int:
        return max(members.rules.priority, *(pod.priority for pod in members.group.pending))

    def _preempting(self, tried: TriedGroup) -> DominantReason | None:
        """If the group fits once victims are gone."""
        members = tried.members
        if not self._trial.may_preempt(members) or not self._lower(members):
            return None
        if len(members.pending) * len(tried.tried) > _MAX_PREEMPTING:
            self._notes.append("preemption is not examined: the group is large")
            return None
        result = self._trial.whole(members)
        if result.outcome is not GroupOutcome.WAITING:
            tail = result.message.partition(f"{GROUP_UNSCHEDULABLE}, ")[2]
            self._notes.append(f"preemption does not help{': ' if tail else ''}{tail}")
            return None
        victims = [pod.key for pod in result.victims] or [
            victim.key
            for member in result.members
            for victim in getattr(member.decision, "victims", ())
        ]
        verb = "is" if len(victims) == 1 else "are"
        text = f"fits once {_named(victims)} of lower priority {verb} evicted"
        return DominantReason(GroupReasonKind.PREEMPTS, text)

    def _priority_clause(self, members: CycleMembers) -> str:
        occupied = any(entry.node for entry in self._state.pods.values())
        if not occupied or not self._trial.may_preempt(members) or self._lower(members):
            return ""
        return f", and no pod has a lower priority than {self._own_priority(members)}"


def _named(keys: list[str]) -> str:
    """``2 pods (ml/a, ml/b)``."""
    names = ", ".join(sorted(keys)[:_VICTIMS]) + (" ..." if len(keys) > _VICTIMS else "")
    return f"{len(keys)} pod{'s' if len(keys) != 1 else ''} ({names})"
