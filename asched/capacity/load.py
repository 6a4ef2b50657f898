"""Forecasts of load: recorded arrivals, scaled or resampled.

*Units.* The pods of a PodGroup, and the pods of one controller that arrive in the same hour, arrive
together: they are kept, dropped or copied as one. A copy has names and uids of its own, and a copy
of the PodGroup.

*Scaling* by ``s`` keeps each unit ``floor(s + u)`` times, where ``u`` is uniform in [0, 1) and
follows from the seed and the unit. So the expected number is ``s``, and a larger scale contains all
units of a smaller one. A copy arrives at a uniform time in the hour of the original, which keeps
the course of the day.

*Resampling* is a block bootstrap (Künsch 1989; Efron and Tibshirani, *An Introduction to the
Bootstrap*, 1993): the period is divided into hours or days from its beginning, and each of them is
replaced by a random one with replacement. An hour comes from the same hour of another day if the
period has at least two days. Dependences within a block stay, those between blocks are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from asched.audit.lookup import AuditError
from asched.audit.whatif.node_changes import ChangedTrace
from asched.capacity.arrival_copies import ArrivalCopies, Copy
from asched.config.kube_scheduler import Section
from asched.framework.pod_groups import group_of
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.simulator.trace import PodCreated, WorkloadTrace

HOUR_NS: Final = 3600 * NS_PER_S
DAY_NS: Final = 24 * HOUR_NS


class LoadForecast(Section, frozen=True):
    """Other arrivals than those of the workload."""

    scale: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    """Expected number of pods for each pod that arrives."""
    resample: Literal["", "hour", "day"] = ""
    """The blocks that are drawn; empty for the arrivals as they are."""

    @property
    def label(self) -> str:
        """For tables; empty if nothing changes."""
        parts = [f"{self.scale:g}x"] if self.scale != 1 else []
        return ", ".join([*parts, f"resampled by {self.resample}"] if self.resample else parts)


class _Arrival(NamedTuple):
    """A use of a unit; the first pod arrives at ``at_ns``."""

    unit: str
    at_ns: int


def with_load(trace: WorkloadTrace, load: LoadForecast, seed: int) -> ChangedTrace:
    """The trace with other arrivals. Pods that have a node at the beginning stay as they are; pods
    that are pending at the beginning are scaled and not resampled.

    Raises AuditError for a period of fewer than two blocks.
    """
    if not load.label:
        return ChangedTrace(trace)
    units = _units(trace)
    first_ns = {name: pods[0].at_ns for name, pods in units.items()}
    arrivals = [_Arrival(name, at_ns) for name, at_ns in first_ns.items()]
    span = _Span(trace.begin_ns, _end_ns(trace))
    if load.resample:
        block_ns = HOUR_NS if load.resample == "hour" else DAY_NS
        arrivals = _resampled(arrivals, span, block_ns, Random(f"{seed}/resample"))
    numbers: defaultdict[str, int] = defaultdict(int)
    copies: defaultdict[str, list[Copy]] = defaultdict(list)
    for unit, at_ns in _scaled(arrivals, span, load.scale, seed):
        copies[unit].append(Copy(numbers[unit], at_ns - first_ns[unit]))
        numbers[unit] += 1
    by_uid = {
        created.pod.metadata.uid: copies[unit] for unit, pods in units.items() for created in pods
    }
    changed = ArrivalCopies(by_uid, trace).trace()
    before = len(by_uid)
    after = sum(len(one) for one in by_uid.values())
    return ChangedTrace(changed, (f"{after:,} pods arrive instead of {before:,}",))


class _Span(NamedTuple):
    begin_ns: int
    end_ns: int


def _end_ns(trace: WorkloadTrace) -> int:
    """The end, or that of the hour of the last event."""
    if trace.end_ns is not None:
        return trace.end_ns
    last_ns = trace.events[-1].at_ns if trace.events else trace.begin_ns
    return trace.begin_ns + ((last_ns - trace.begin_ns) // HOUR_NS + 1) * HOUR_NS


def _units(trace: WorkloadTrace) -> dict[str, list[PodCreated]]:
    """The pods that arrive without a node, by unit, in the order of the first pod."""
    found: dict[str, list[PodCreated]] = {}
    for event in trace.events:
        if isinstance(event, PodCreated) and not event.pod.spec.node_name:
            hour = (event.at_ns - trace.begin_ns) // HOUR_NS
            found.setdefault(_unit_of(event.pod, hour), []).append(event)
    return found


def _unit_of(pod: Pod, hour: int) -> str:
    group = group_of(pod)
    if group is not None:
        return f"group {group.native} {group.key}"
    owner = pod.metadata.controller
    return f"pod {pod.metadata.uid}" if owner is None else f"owner {owner.uid} {hour}"


def _resampled(
    arrivals: Sequence[_Arrival], span: _Span, block_ns: int, random: Random
) -> list[_Arrival]:
    length_ns = span.end_ns - span.begin_ns
    complete = length_ns // block_ns
    if complete < 2:
        raise AuditError(
            "loads: resampling needs a period of at least two hours (days to resample by day)"
        )
    blocks: defaultdict[int, list[_Arrival]] = defaultdict(list)
    kept = []
    for one in arrivals:
        if one.at_ns > span.begin_ns:
            blocks[(one.at_ns - span.begin_ns) // block_ns].append(one)
        else:
            kept.append(one)
    of_day = DAY_NS // block_ns if block_ns < DAY_NS and length_ns >= 2 * DAY_NS else 1
    for position in range(-(-length_ns // block_ns)):
        drawn = random.choice(range(position % of_day, complete, of_day))
        shift_ns = (position - drawn) * block_ns
        moved = (_Arrival(unit, at_ns + shift_ns) for unit, at_ns in blocks[drawn])
        kept += (one for one in moved if one.at_ns <= span.end_ns)
    return kept


def _scaled(
    arrivals: Sequence[_Arrival], span: _Span, scale: float, seed: int
) -> Iterator[_Arrival]:
    for number, one in enumerate(arrivals):
        random = Random(f"{seed}/{number}/{one.unit}")
        for copy in range(int(scale + random.random())):
            if not copy:
                yield one
                continue
            begin_ns = one.at_ns - (one.at_ns - span.begin_ns) % HOUR_NS
            end_ns = min(begin_ns + HOUR_NS, span.end_ns)
            at_ns = begin_ns + int(random.random() * (end_ns - begin_ns))
            yield _Arrival(one.unit, at_ns)
