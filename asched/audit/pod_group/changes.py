"""Single changes that admit a group, each of them verified by a pass of the group cycle.

The domains in which most members fit are examined. A change of pods or of the group itself is
tried in any domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

from msgspec.structs import replace

from asched.audit.pod_group.forms import GroupChange, GroupChangeKind
from asched.audit.pod_group.lacks import DomainLack, LackFinder
from asched.audit.pod_group.node_changes import (
    DomainSearch,
    label_changes,
    node_changes,
    smallest,
)
from asched.audit.pod_group.trial import GroupTrial, TriedGroup, count_members
from asched.audit.unblock import relaxed_pods
from asched.audit.whatif.pod_lifetime import as_created
from asched.framework.pod_groups import AnyPodGroup, PodGroupKey, find_group, group_of
from asched.framework.pod_info import PodInfo
from asched.group_cycle.member_pass import PassMode, PassResult, Preemption
from asched.group_cycle.placement_choice import rows_within
from asched.group_cycle.preemption import GroupVictims, find_victims, possible_victims
from asched.model.groups import PodGroup
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.model.workloads import PodDisruptionBudget
from asched.plugins.default_preemption.budgets import Budgets
from asched.state.cluster import PlacementState
from asched.state.group_records import GroupOutcome

_DOMAINS: Final = 3
"""Domains that are examined."""
_GROUPS: Final = 10
"""Other groups that are tried to be evicted."""
_REWRITTEN: Final = 1000
"""Pods that a change may rewrite."""
_NAMED_PODS: Final = 20
_HIGHEST_PRIORITY: Final = 1_000_000_000
"""Of priority classes that are not of the system."""
_ABOVE_ALL: Final = 1 << 40
_ORDER: Final = {kind: place for place, kind in enumerate(GroupChangeKind)}


class ChangeSearch:
    """Searches the changes for one group that is not admitted."""

    def __init__(self, trial: GroupTrial, minimum: int) -> None:
        self._trial = trial
        self._minimum = minimum

    def for_domains(
        self, finder: LackFinder, lacks: Sequence[DomainLack]
    ) -> tuple[GroupChange, ...]:
        """For a group that was tried and fits in no domain; the smallest change first."""
        found = finder.found
        tried = {one.placement.name: one for one in found.tried}
        changes = [*self._of_pods(found)]
        changes += self._lower_minimum(lacks[0].name, lacks[0].fits)
        for lack in lacks[:_DOMAINS]:
            domain = DomainSearch(self._trial, finder, tried[lack.name], lack)
            changes += node_changes(domain)
            changes += self._evictions(domain)
        changes += self._raise_priority(found)
        return _smallest_first(changes)

    def without_domains(self, found: TriedGroup) -> tuple[GroupChange, ...]:
        """For a group with a topology label that no node has: where it fits without it."""
        members = found.members
        anywhere = members.rules._replace(topology_key="")
        tried = self._trial.attempt(members.under(anywhere))
        if not tried.feasible:
            return ()
        needed = max(1, members.rules.min_count - len(members.group.running))
        placed = [m.node for m in tried.feasible[0].result.members if m.fits][:needed]
        nodes = [*dict.fromkeys(placed)]
        return tuple(label_changes(self._trial, members.rules.topology_key, nodes))

    def for_members(self) -> tuple[GroupChange, ...]:
        """For a group that is not tried because members are missing or gated."""
        changes = [*self._ungated(), *self._more_pods()]
        counts = count_members(self._trial.state, self._trial.group)
        free = len(counts.ready) + sum(
            not entry.info.pod.spec.scheduling_gates
            for held in counts.gated.values()
            for entry in held
        )
        changes += self._lower_minimum(None, free)
        return _smallest_first(changes)

    # -- the group and its members ------------------------------------------------------------

    def _of_pods(self, found: TriedGroup) -> Iterator[GroupChange]:
        pods = [info.pod for info in found.members.group.pending]
        yield from self._ungated()
        if len(pods) > _REWRITTEN:
            return
        for name, key, _ in relaxed_pods(pods[0]):
            relaxed = [_relaxed(pod, name) for pod in pods]
            with self._trial.changeable.replaced(*relaxed):
                admitted = self._trial.admits()
            if admitted:
                summary = f"without the {name} of its pods"
                kind = GroupChangeKind.POD_CONSTRAINT
                yield GroupChange(kind, summary, len(pods), key=key, count=len(pods))

    def _ungated(self) -> Iterator[GroupChange]:
        counts = count_members(self._trial.state, self._trial.group)
        gated = [
            entry.info.pod
            for held in counts.gated.values()
            for entry in held
            if entry.info.pod.spec.scheduling_gates
        ]
        if not gated or len(gated) > _REWRITTEN:
            return
        names = ", ".join(
            sorted({gate.name for pod in gated for gate in pod.spec.scheduling_gates})
        )
        free = [replace(pod, spec=replace(pod.spec, scheduling_gates=())) for pod in gated]

        def works(count: int) -> bool:
            with self._trial.changeable.replaced(*free[:count]):
                return self._trial.admits()

        count = smallest(len(free), works)
        if count:
            pods = f"{count} pods" if count > 1 else f"pod {gated[0].key}"
            summary = f"remove the scheduling gate {names} from {pods}"
            named = tuple(pod.key for pod in gated[:count][:_NAMED_PODS])
            kind = GroupChangeKind.UNGATE
            yield GroupChange(kind, summary, count, key=names, pods=named, count=count)

    def _more_pods(self) -> Iterator[GroupChange]:
        counts = count_members(self._trial.state, self._trial.group)
        more = self._minimum - (len(counts.entries) - counts.terminating)
        if not 0 < more <= _REWRITTEN or not counts.entries:
            return
        model = counts.entries[0].info.pod
        copies = [_copied(model, f"{model.name}-copy-{number}") for number in range(more)]
        with self._trial.changeable.added(*copies):
            admitted = self._trial.admits()
        if admitted:
            summary = f"create {more} more pod{'s' if more > 1 else ''} like {model.key}"
            kind = GroupChangeKind.ADD_PODS
            yield GroupChange(kind, summary, more, pods=(model.key,), count=more)

    def _lower_minimum(self, domain: str | None, fits: int) -> Iterator[GroupChange]:
        trial = self._trial
        declared = find_group(trial.state, trial.group)
        with_node = count_members(trial.state, trial.group).with_node
        lowered = with_node + fits
        if declared is None or not 1 <= lowered < self._minimum:
            return
        with trial.changeable.replaced(_with_minimum(declared, lowered)):
            admitted = trial.admits(domain)
        if admitted:
            field = "minCount" if isinstance(declared, PodGroup) else "minMember"
            summary = f"lower {field} from {self._minimum} to {lowered}"
            kind = GroupChangeKind.LOWER_MINIMUM
            yield GroupChange(kind, summary, 1, domain=domain or "", minimum=lowered)

    def _raise_priority(self, found: TriedGroup) -> Iterator[GroupChange]:
        trial, members = self._trial, found.members
        declared = find_group(trial.state, trial.group)
        if declared is None or len(members.pending) > _REWRITTEN:
            return
        if not trial.may_preempt(members):
            return
        own = max(members.rules.priority, *(pod.priority for pod in members.group.pending))
        others = {entry.info.priority for entry in trial.state.pods.values() if entry.node}
        levels = sorted(p + 1 for p in others if own <= p < _HIGHEST_PRIORITY)
        pods = [e.info.pod for e in count_members(trial.state, trial.group).entries]

        def works(count: int) -> bool:
            level = levels[count - 1]
            raised = [_with_priority(pod, level) for pod in pods]
            with trial.changeable.replaced(*_group_with_priority(declared, level), *raised):
                result = trial.preempts()
            admitted = (GroupOutcome.SCHEDULED, GroupOutcome.WAITING)
            return result is not None and result.outcome in admitted

        count = smallest(len(levels), works)
        if count:
            level = levels[count - 1]
            summary = f"raise the priority from {own} to {level}, so that it preempts"
            kind = GroupChangeKind.RAISE_PRIORITY
            yield GroupChange(kind, summary, len(pods), priority=level)

    # -- other pods ---------------------------------------------------------------------------

    def _evictions(self, domain: DomainSearch) -> Iterator[GroupChange]:
        victims = self._fewest_victims(domain)
        if not victims:
            return
        groups = dict.fromkeys(group_of(pod.pod) for pod in victims)
        for group in [group for group in groups if group is not None][:_GROUPS]:
            change = self._without_group(domain, group)
            if change is not None:
                yield change
        named = tuple(sorted(pod.key for pod in victims)[:_NAMED_PODS])
        shown = ", ".join(named[:3]) + (" ..." if len(victims) > 3 else "")
        number = f"{len(victims)} pods" if len(victims) > 1 else "pod"
        violates = self._violations(victims)
        yield GroupChange(
            GroupChangeKind.EVICT_PODS,
            f"evict {number} {shown}{_budget_text(violates)}",
            len(victims),
            domain=domain.name,
            pods=named,
            count=len(victims),
            violates_budgets=violates,
        )

    def _fewest_victims(self, domain: DomainSearch) -> tuple[PodInfo, ...]:
        """The least important pods without which the group fits, whatever their priority."""
        trial, members = self._trial, domain.finder.found.members
        passes = trial.passes(members)
        within = rows_within(trial.state, domain.tried.placement)

        def try_group() -> PassResult:
            trial.left -= len(members.pending)
            return passes.run(members, PassMode(Preemption.NONE, within=within))

        if not trial.may_try():
            return ()
        above = members.under(members.rules._replace(priority=_ABOVE_ALL))
        units = possible_victims(trial.state, above)
        found = find_victims(trial.state, passes.trial, above, units, try_group, trial.left // 4)
        if not isinstance(found, GroupVictims):
            return ()
        own = trial.state.groups.members(trial.group).statuses
        return () if any(pod.key in own for pod in found.pods) else found.pods

    def _without_group(self, domain: DomainSearch, group: PodGroupKey) -> GroupChange | None:
        """All pods of another group are gone."""
        trial = self._trial
        if group == trial.group:
            return None
        state = trial.state
        pods = [
            state.pods[key].info
            for key in sorted(state.groups.members(group).statuses)
            if state.pods[key].placement_state is not PlacementState.PENDING
        ]
        if not domain.helps(trial.changeable.without_pods([pod.key for pod in pods])):
            return None
        violates = self._violations(pods)
        return GroupChange(
            GroupChangeKind.EVICT_GROUP,
            f"evict or finish PodGroup {group.key}: {len(pods)} pods{_budget_text(violates)}",
            1,
            domain=domain.name,
            pods=tuple(pod.key for pod in pods[:_NAMED_PODS]),
            group=group.key,
            count=len(pods),
            priority=max(pod.priority for pod in pods),
            violates_budgets=violates,
        )

    def _violations(self, pods: Sequence[PodInfo]) -> int:
        budgets = Budgets(self._trial.state.objects(PodDisruptionBudget).values())
        return len(budgets.split(pods)[0])


def _budget_text(violates: int) -> str:
    if not violates:
        return ""
    return f" (a PodDisruptionBudget protects {violates} of them)"


def _smallest_first(changes: Sequence[GroupChange]) -> tuple[GroupChange, ...]:
    """Without repetitions for other domains, except those of the same size."""
    smallest_of: dict[tuple[GroupChangeKind, str, str], int] = {}
    kept = []
    for change in sorted(changes, key=lambda one: (one.size, _ORDER[one.kind], one.domain)):
        same = change.kind, change.key, change.group
        if smallest_of.setdefault(same, change.size) == change.size:
            kept.append(change)
    return tuple(kept)


def _relaxed(pod: Pod, name: str) -> Pod:
    return next((relaxed for found, _, relaxed in relaxed_pods(pod) if found == name), pod)


def _copied(model: Pod, name: str) -> Pod:
    created = as_created(model)
    metadata = replace(created.metadata, name=name, uid=f"uid-{name}")
    spec = replace(created.spec, scheduling_gates=())
    return replace(created, metadata=metadata, spec=spec)


def _with_priority(pod: Pod, priority: int) -> Pod:
    return replace(pod, spec=replace(pod.spec, priority=priority))


def _with_minimum(group: AnyPodGroup, minimum: int) -> AnyObject:
    if not isinstance(group, PodGroup):
        return cast(AnyObject, replace(group, spec=replace(group.spec, min_member=minimum)))
    policy = group.spec.scheduling_policy
    assert policy.gang is not None, "only a gang has a minimum"
    policy = replace(policy, gang=replace(policy.gang, min_count=minimum))
    return replace(group, spec=replace(group.spec, scheduling_policy=policy))


def _group_with_priority(group: AnyPodGroup, priority: int) -> tuple[PodGroup, ...]:
    if not isinstance(group, PodGroup):
        return ()  # its priority is that of its pods
    return (replace(group, spec=replace(group.spec, priority=priority)),)
