"""The dominant reason of a group, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from asched.audit.pod_group.forms import GroupReasonKind
from asched.audit.pod_group.lacks import DomainLack
from asched.audit.pod_group.trial import MemberCounts
from asched.audit.unblock import amount_text
from asched.framework.pod_groups import GANG_SCHEDULING, GroupRules
from asched.model.limits import POD_LIMITS
from asched.model.requests import PODS
from asched.plugins.gang_scheduling import TOO_FEW
from asched.plugins.queue_and_bind import SchedulingGates

KINDS: Final = {
    "NodeResourcesFit": GroupReasonKind.RESOURCES,
    "DynamicResources": GroupReasonKind.DEVICES,
    "TaintToleration": GroupReasonKind.TAINTS,
    "NodeUnschedulable": GroupReasonKind.CORDONED,
    "NodeAffinity": GroupReasonKind.NODE_AFFINITY,
    "InterPodAffinity": GroupReasonKind.POD_AFFINITY,
    "PodTopologySpread": GroupReasonKind.SPREAD,
    "NodePorts": GroupReasonKind.PORTS,
    "VolumeBinding": GroupReasonKind.VOLUMES,
    "VolumeZone": GroupReasonKind.VOLUMES,
    "VolumeRestrictions": GroupReasonKind.VOLUMES,
    "NodeVolumeLimits": GroupReasonKind.VOLUMES,
    POD_LIMITS: GroupReasonKind.LIMITS,
}
"""By the plugin that rejects most nodes."""


class DominantReason(NamedTuple):
    """The reason that holds a group, or why none does."""

    kind: GroupReasonKind
    sentence: str


class Situation(NamedTuple):
    """A group, and how many of its members are missing."""

    rules: GroupRules
    counts: MemberCounts
    missing: int
    """How many more members need a node."""

    @property
    def key(self) -> str:
        return self.rules.group.key

    @property
    def level(self) -> str:
        """The topology level in prose: ``rack``; empty without constraint."""
        return self.rules.topology_key.rpartition("/")[2]


def before_trial(now: Situation) -> DominantReason | None:
    """The reason of a group that is not tried at all; None if it is."""
    counts, minimum = now.counts, now.rules.min_count
    exists = len(counts.entries)
    if not exists:
        return DominantReason(GroupReasonKind.NO_PODS, f"no pod names PodGroup {now.key}")
    if counts.ready:
        return None
    if not counts.pending and not counts.foreign:
        if counts.with_node >= max(minimum, 1):
            return DominantReason(GroupReasonKind.RUNS, _running(now))
        return _too_few(now)
    if counts.foreign and not counts.pending:
        name, pods = next(iter(counts.foreign.items()))
        text = f"no profile has the scheduler name {name!r} of {_pods(len(pods))}"
        return DominantReason(GroupReasonKind.SCHEDULER_NAMES, text)
    by, held = max(counts.gated.items(), key=lambda item: len(item[1]))
    if by == GANG_SCHEDULING and counts.gate_messages[by] == TOO_FEW:
        gated = counts.gated.get(SchedulingGates.name, [])
        return _too_few(now) if exists < minimum or not gated else _gated(now, len(gated))
    if by == SchedulingGates.name:
        return _gated(now, len(held))
    text = f"{by} holds back {len(held)} of its {_pods(exists)}: {counts.gate_messages[by]}"
    return DominantReason(GroupReasonKind.GATED, text)


def _running(now: Situation) -> str:
    minimum = f", at least {now.rules.min_count} are required" if now.rules.min_count else ""
    return f"runs: {now.counts.with_node} of {_pods(len(now.counts.entries))} have a node{minimum}"


def _too_few(now: Situation) -> DominantReason:
    counts, minimum = now.counts, now.rules.min_count
    usable = len(counts.entries) - counts.terminating
    others = sum(map(len, counts.foreign.values()))
    text = f"needs {_pods(minimum)}; only {_verb(usable - others, 'exists', 'exist')}"
    if counts.terminating:
        text += f", {_verb(counts.terminating, 'is', 'are')} being deleted"
    if others:
        text += f", {_verb(others, 'has', 'have')} the name of another scheduler"
    return DominantReason(GroupReasonKind.MISSING_MEMBERS, text)


def _gated(now: Situation, gated: int) -> DominantReason:
    names = {
        gate.name
        for entry in now.counts.gated.get(SchedulingGates.name, [])
        for gate in entry.info.pod.spec.scheduling_gates
    }
    gates = ", ".join(sorted(names)[:3])
    free = len(now.counts.entries) - gated - now.counts.terminating
    have = _verb(gated, "has", "have")
    text = f"needs {_pods(now.rules.min_count)}; {have} the scheduling gate {gates}"
    if not now.rules.min_count:
        text = f"all {gated} pending pods have the scheduling gate {gates}"
    elif free:
        text += f", {_verb(free, 'has', 'have')} none"
    return DominantReason(GroupReasonKind.GATED, text)


def of_lacks(
    now: Situation, lacks: Sequence[DomainLack], demand: dict[str, int], priority: str
) -> DominantReason:
    """The reason of a group that fits in no domain. ``priority``: why preemption does not help, as
    a clause."""
    best = _dominant(lacks)
    kind = KINDS.get(best.plugin, GroupReasonKind.PLUGIN if best.plugin else None)
    if kind is None:
        return _incomplete(now, best)
    if kind is GroupReasonKind.RESOURCES:
        text = _resources(now, lacks, best, demand)
        return DominantReason(kind, f"{text}{priority}")
    return DominantReason(kind, _rejected(now, best))


def _dominant(lacks: Sequence[DomainLack]) -> DomainLack:
    """The domain in which most members fit. Of several, one with the reason that most have."""
    best = [lack for lack in lacks if lack.fits == lacks[0].fits]
    plugins = [lack.plugin for lack in best]
    return max(best, key=lambda lack: plugins.count(lack.plugin))


def _incomplete(now: Situation, best: DomainLack) -> DominantReason:
    """All pending members fit, but others are missing."""
    gated = len(now.counts.gated.get(SchedulingGates.name, []))
    if gated:
        return _gated(now, gated)
    return _too_few(now)


def _resources(
    now: Situation, lacks: Sequence[DomainLack], best: DomainLack, demand: dict[str, int]
) -> str:
    where = f" in one {now.level}" if now.level else ""
    more = " more" if now.counts.with_node else ""
    # The decisive resource: the best domain lacks the largest share of it.
    resource = max(
        (name for name in best.short if name != PODS or len(best.short) == 1),
        key=lambda name: (best.short[name] / demand[name], name),
        default="",
    )
    if not resource:
        named = next(iter(best.insufficient), PODS)
        each = demand.get(named, 0) // max(1, now.missing)
        pods, of_each = ("pod", "") if now.missing == 1 else ("pods", " each")
        size = f" with {amount_text(named, each)} {named}{of_each}" if named != PODS else ""
        has = f"the best {now.level} ({best.name})" if now.level else "the cluster"
        room = f"has room for {best.fits}" if best.fits else "has room for none"
        spread = ""
        if named in best.free and named != PODS:
            free = f"{amount_text(named, best.free[named])} {named}"
            spread = f": {free} are free, but spread over several nodes"
        return f"needs room for {now.missing}{more} {pods}{size}{where}; {has} {room}{spread}"
    needed = f"needs {amount_text(resource, demand[resource])}{more} {resource}{where}"
    largest = max(lacks, key=lambda lack: lack.free.get(resource, 0))
    free = amount_text(resource, largest.free.get(resource, 0))
    if not now.level:
        return f"{needed}; nodes that accept its pods have {free} free"
    if now.counts.with_node:
        return f"{needed}; {largest.name}, where its members run, has {free} free"
    return f"{needed}; the largest free domain has {free} ({largest.name})"


def _rejected(now: Situation, best: DomainLack) -> str:
    where = f" in one {now.level}" if now.level else ""
    more = " more" if now.counts.with_node else ""
    place = f" ({best.name})" if best.name else ""
    most = f"at most {_verb(best.fits, 'fits', 'fit')}{place}" if best.fits else "none fits"
    return f"needs nodes for {_pods(now.missing, more)}{where}; {most}: {best.rejection}"


def _verb(number: int, one: str, several: str) -> str:
    """``1 has`` or ``2 have``."""
    return f"{number} {one if number == 1 else several}"


def _pods(number: int, more: str = "") -> str:
    return f"{number}{more} pod{'s' if number != 1 else ''}"
