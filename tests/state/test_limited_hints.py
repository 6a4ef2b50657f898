"""Hints that a plugin limits to named pods (``only_for``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

import pytest

from asched.framework.cluster import Eviction, PodRef
from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.framework.interface import EnqueueExtensions, FilterPlugin
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.state.preemption import Evictions
from tests.state.objects import a_node, a_pod
from tests.state.queue_driver import Queue

_NODE_ADDED = ClusterEvent(EventResource.NODE, ActionType.ADD)


def _nobody() -> Collection[str]:
    return ()


def _second() -> Collection[str]:
    return ("default/stranger", "default/second")


def _both_backwards() -> Collection[str]:
    return ("default/second", "default/first")


def _raises() -> Collection[str]:
    raise RuntimeError("a bug")


def _nonsense() -> Collection[str]:
    return 5  # type: ignore[return-value]


def _not_even_keys() -> Collection[str]:
    return [[], {}]  # type: ignore[list-item]


class Naming(FilterPlugin, EnqueueExtensions):
    """Its hint returns QUEUE and logs the pod."""

    name: ClassVar[str] = "Naming"
    api_version: ClassVar[int] = 1
    names: ClassVar[Callable[[], Collection[str]]]
    asked: ClassVar[list[str]]

    def filter(self, state: object, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return (ClusterEventWithHint(_NODE_ADDED, self._hint, only_for=type(self).names),)

    def _hint(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        self.asked.append(pod.metadata.name)
        return QueueingHint.QUEUE


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        (_nobody, []),
        (_second, ["second"]),
        (_both_backwards, ["first", "second"]),
        (_raises, ["first", "second"]),
        (_nonsense, ["first", "second"]),
        (_not_even_keys, ["first", "second"]),
    ],
    ids=["none", "second", "backwards", "raises", "nonsense", "no keys"],
)
def test_hint_is_evaluated_for_named_pods_in_waiting_order(
    names: Callable[[], Collection[str]], asked: list[str]
) -> None:
    class Own(Naming):
        pass

    Own.names, Own.asked = staticmethod(names), []
    queue = Queue(Own)
    queue.see(a_pod("first"), a_pod("second"))
    queue.reject(Own.name)
    queue.reject(Own.name)
    queue.see(a_node("n1"))
    assert Own.asked == asked
    assert {*queue.queue.unschedulable} == {"default/first", "default/second"} - {
        f"default/{name}" for name in asked
    }


def _eviction(victim: str, preemptor: str) -> Eviction:
    return Eviction(PodRef(f"ns/{victim}", victim), PodRef(f"ns/{preemptor}", preemptor), "n0")


def test_preemptor_is_completed_after_last_eviction() -> None:
    evictions = Evictions()
    evictions.begin(_eviction("a", "p"))
    evictions.begin(_eviction("b", "p"))
    evictions.end("a")
    assert evictions.is_preempting("p")
    assert not evictions.completed_preemptors
    evictions.end("b")
    assert not evictions.is_preempting("p")
    assert evictions.completed_preemptors == {"p": "ns/p"}
    evictions.begin(_eviction("c", "p"))
    assert evictions.is_preempting("p")
    assert not evictions.completed_preemptors


def test_victim_of_another_preemptor_completes_the_first() -> None:
    evictions = Evictions()
    evictions.begin(_eviction("a", "p"))
    evictions.begin(_eviction("a", "q"))
    assert evictions.is_preempting("q")
    assert evictions.completed_preemptors == {"p": "ns/p"}


def test_deleted_preemptor_leaves_no_eviction_state() -> None:
    evictions = Evictions()
    evictions.begin(_eviction("a", "p"))
    evictions.begin(_eviction("b", "p"))
    evictions.mark_unneeded("p")
    evictions.end("a")
    evictions.end("b")
    assert not evictions.is_preempting("p")
    assert not evictions.completed_preemptors
    assert not evictions
    evictions.begin(_eviction("c", "p"))
    evictions.end("c")
    assert evictions.completed_preemptors == {"p": "ns/p"}
