"""How long pods run: observed in a recorded run, drawn for pods like them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from random import Random
from typing import Final

from asched.fit.survival import Observed, SurvivalCurve, kaplan_meier
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.requests import pod_requests
from asched.simulator.trace import EndReason, PodRun

LEAST_PODS: Final = 20
"""A class of pods with fewer observations is too small: the next wider one counts."""
_ENDS: Final = (EndReason.FINISHED, EndReason.DELETED)
"""What ends a running time. Evictions and lost nodes only end its observation."""


def ran_ns(run: PodRun, until_ns: int) -> int:
    """How long the pod ran until a time, on all nodes together."""
    return sum(
        min(until_ns, until_ns if placement.ended_ns is None else placement.ended_ns)
        - placement.bound_ns
        for placement in run.placements
        if placement.bound_ns is not None and placement.bound_ns <= until_ns
    )


def age_before_ns(run: PodRun) -> int:
    """How long the pod had been running when it was first observed."""
    pod = run.pod
    if not pod.spec.node_name:
        return 0
    started = pod.status.start_time or pod.metadata.creation_timestamp
    if started is None:
        return 0
    return max(0, run.created_ns - round(started.timestamp() * NS_PER_S))


def observed(run: PodRun, until_ns: int) -> Observed | None:
    """What is known about the running time at a time; None if the pod was not bound until then."""
    bound_ns = run.bound_ns
    if bound_ns is None or bound_ns > until_ns:
        return None
    before_ns = age_before_ns(run)
    ended = run.end in _ENDS and run.ended_ns is not None and run.ended_ns <= until_ns
    exit_ns = before_ns + ran_ns(run, until_ns)
    return Observed(before_ns / NS_PER_S, exit_ns / NS_PER_S, ended)


class LifetimeModel:
    """Draws remaining running times from those of like pods.

    Like pods have the same kind of owner, the same namespace, and requests of the same magnitude.
    If fewer than :data:`LEAST_PODS` of them were observed, those of the same owner kind and
    namespace count, then those of the same owner kind, then all.
    """

    def __init__(self, runs: Iterable[PodRun], until_ns: int) -> None:
        """``runs`` as known at a time."""
        self._by_class: dict[Hashable, list[Observed]] = {}
        self._curves: dict[Hashable, SurvivalCurve] = {}
        self._chosen: dict[Hashable, SurvivalCurve] = {}
        for run in runs:
            found = observed(run, until_ns)
            if found is not None:
                for name in _classes(run.pod):
                    self._by_class.setdefault(name, []).append(found)

    @property
    def pods(self) -> int:
        """The number of pods that were observed."""
        return len(self._by_class.get((), ()))

    def curve(self, pod: Pod) -> SurvivalCurve:
        """The curve of the narrowest class with enough pods."""
        names = [*_classes(pod)]
        chosen = self._chosen.get(names[0])
        if chosen is None:
            enough = (name for name in names if len(self._of(name)) >= LEAST_PODS)
            chosen = self._chosen[names[0]] = self._curve(next(enough, ()))
        return chosen

    def _of(self, name: Hashable) -> list[Observed]:
        return self._by_class.get(name, [])

    def _curve(self, name: Hashable) -> SurvivalCurve:
        known = self._curves.get(name)
        if known is None:
            known = self._curves[name] = kaplan_meier(self._of(name))
        return known


def draw_ns(curve: SurvivalCurve, age_ns: int, random: Random) -> int | None:
    """A remaining running time; None if it does not end within observed ages."""
    drawn_s = curve.remaining_s(age_ns / NS_PER_S, random.random())
    return None if drawn_s is None else max(0, round(drawn_s * 1000)) * (NS_PER_S // 1000)


def _classes(pod: Pod) -> Iterator[Hashable]:
    """The classes of a pod, the narrowest first."""
    owner = pod.metadata.controller
    kind = "" if owner is None else owner.kind
    requests = pod_requests(pod)
    sizes = tuple(
        (name, round(math.log2(amount))) for name, amount in sorted(requests.items()) if amount > 0
    )
    yield (kind, pod.namespace, sizes)
    yield (kind, pod.namespace)
    yield (kind,)
    yield ()
