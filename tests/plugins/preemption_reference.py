"""Preemption on one node at a time, plainly: what the fast dry run must agree with.

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
    """A node: what it offers, who is on it, and who is nominated to it."""

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
    """With the nominated pods that come before it, and without them."""
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
    """Whom to evict; None where it would not help."""
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
