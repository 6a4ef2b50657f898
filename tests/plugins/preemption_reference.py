"""A simple implementation of preemption on one node: the reference for the dry run.

Only cpu and the number of pods matter here, which is enough to make victims compete.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from asched.model.pod import Pod
from asched.model.quantity import milli_value
from asched.model.workloads import PodDisruptionBudget

_LATEST = datetime.max.replace(tzinfo=UTC)


class Room(NamedTuple):
    """A node with its capacity, its pods and the pods nominated to it."""

    cpu_milli: int
    allowed_pods: int
    pods: Sequence[Pod]
    nominated: Sequence[Pod] = ()


class Choice(NamedTuple):
    victims: list[str]
    violations: int


def cpu_milli(pod: Pod) -> int:
    return sum(milli_value(c.resources.requests["cpu"]) for c in pod.spec.containers)


def has_room(room: Room, pod: Pod, pods: Sequence[Pod]) -> bool:
    asked = sum(map(cpu_milli, pods)) + cpu_milli(pod)
    return asked <= room.cpu_milli and len(pods) + 1 <= room.allowed_pods


def fits(room: Room, pod: Pod, pods: Sequence[Pod]) -> bool:
    """Whether it fits with and without the nominated pods of higher priority."""
    guests = [
        g for g in room.nominated if g.spec.priority >= pod.spec.priority and g.uid != pod.uid
    ]
    return has_room(room, pod, [*pods, *guests]) and has_room(room, pod, pods)


def importance(pod: Pod) -> tuple[int, datetime]:
    return -pod.spec.priority, pod.status.start_time or _LATEST


def violating_pods(pods: Sequence[Pod], budgets: Sequence[PodDisruptionBudget]) -> set[str]:
    left = [budget.status.disruptions_allowed for budget in budgets]
    violating = set()
    for pod in pods:
        for index, budget in enumerate(budgets):
            selector = budget.spec.selector
            assert selector is not None
            if selector.matches(pod.labels) and pod.name not in budget.status.disrupted_pods:
                left[index] -= 1
                if left[index] < 0:
                    violating.add(pod.uid)
    return violating


def choice(room: Room, pod: Pod, budgets: Sequence[PodDisruptionBudget]) -> Choice | None:
    """The victims; None if preemption does not help."""
    potential = sorted(
        (p for p in room.pods if p.spec.priority < pod.spec.priority), key=importance
    )
    staying = [p for p in room.pods if p not in potential]
    if not potential or not fits(room, pod, staying):
        return None
    violating = violating_pods(potential, budgets)
    victims = []
    for other in sorted(potential, key=lambda p: p.uid not in violating):
        if fits(room, pod, [*staying, other]):
            staying.append(other)
        else:
            victims.append(other)
    if not victims:
        return None
    victims.sort(key=importance)
    return Choice([v.key for v in victims], sum(v.uid in violating for v in victims))
