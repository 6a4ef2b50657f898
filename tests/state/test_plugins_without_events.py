"""Events for plugins without registrations (no ``EnqueueExtensions``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.events import ClusterEventWithHint
from asched.framework.interface import (
    EnqueueExtensions,
    FilterPlugin,
    Plugin,
    PreEnqueuePlugin,
    ScorePlugin,
)
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.resources import AnyObject
from asched.model.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from asched.model.workloads import Namespace, PodDisruptionBudget, Service
from asched.state import records as r
from tests.state.objects import a_node, a_pod, labelled
from tests.state.queue_driver import Queue


class Silent(FilterPlugin):
    """Does not implement EnqueueExtensions."""

    name: ClassVar[str] = "Silent"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS


class Deaf(Silent, EnqueueExtensions):
    """Registers an empty list of events."""

    name: ClassVar[str] = "Deaf"

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        return ()


class OnlyScores(ScorePlugin):
    """Has no extension point that rejects."""

    name: ClassVar[str] = "OnlyScores"
    api_version: ClassVar[int] = 1

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 0


class SilentGate(PreEnqueuePlugin):
    """Gates pods until a node named ``open`` exists."""

    name: ClassVar[str] = "SilentGate"
    api_version: ClassVar[int] = 1

    def pre_enqueue(self, pod: PodInfo) -> Status:
        there = "open" in self.handle.cluster.objects(Node)
        return SUCCESS if there else Status.unresolvable("no node is open")


def named(name: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace="default", uid=f"uid-{name}")


def rejected(plugin: type[Plugin]) -> Queue:
    queue = Queue(plugin)
    queue.see(a_pod("bound", on="n0"), a_pod("p"))
    queue.reject(plugin.name)
    return queue


def sees(*items: AnyObject) -> Callable[[Queue], None]:
    return lambda queue: queue.see(*items)


def goes(kind: str, key: str, uid: str) -> Callable[[Queue], None]:
    return lambda queue: queue.apply(r.ObjectDeleted(kind, key, uid))


HEARD = {
    "a node comes": sees(a_node("n1")),
    "a node changes": sees(a_node("n0", labels={"a": "b"})),
    "a node goes": goes("Node", "n0", "node-n0"),
    "a pod comes to a node": sees(a_pod("q", on="n0")),
    "a pod on a node changes": sees(labelled(a_pod("bound", on="n0"), app="new")),
    "a pod leaves a node": goes("Pod", "default/bound", "pod-bound"),
    "the pod itself changes": sees(labelled(a_pod("p"), app="new")),
    "another pod is to be placed": sees(a_pod("other", scheduler="somebody-else")),
    "a volume comes": sees(PersistentVolume(metadata=named("v"))),
    "a claim comes": sees(PersistentVolumeClaim(metadata=named("c"))),
    "a storage class comes": sees(StorageClass(metadata=named("s"))),
    "drivers come to a node": sees(CSINode(metadata=named("n0"))),
}
UNHEARD = {
    "a namespace comes": sees(Namespace(metadata=named("x"))),
    "a service comes": sees(Service(metadata=named("x"))),
    "a budget comes": sees(PodDisruptionBudget(metadata=named("x"))),
}


@pytest.mark.parametrize("happen", HEARD.values(), ids=HEARD)
def test_events_requeue_pods_of_plugin_without_registrations(
    happen: Callable[[Queue], None],
) -> None:
    """``UnrollWildCardResource`` of kube-scheduler: pods, nodes and storage."""
    queue = rejected(Silent)
    happen(queue)
    assert "default/p" in queue.queue.backoff


@pytest.mark.parametrize("happen", UNHEARD.values(), ids=UNHEARD)
def test_events_that_kube_scheduler_excludes_requeue_no_pod(
    happen: Callable[[Queue], None],
) -> None:
    queue = rejected(Silent)
    happen(queue)
    assert "default/p" in queue.queue.unschedulable


@pytest.mark.parametrize("happen", HEARD.values(), ids=HEARD)
@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(Deaf, id="an empty list"),
        pytest.param(OnlyScores, id="nothing to reject with"),
    ],
)
def test_plugins_that_opted_out_wait_for_the_flush(
    plugin: type[Plugin], happen: Callable[[Queue], None]
) -> None:
    queue = rejected(plugin)
    happen(queue)
    assert "default/p" in queue.queue.unschedulable
    queue.pass_time(301)
    assert "default/p" in queue.queue.active


def test_event_ungates_pod_of_plugin_without_registrations() -> None:
    queue = Queue(SilentGate)
    queue.see(a_pod("p"), a_node("n1"))
    assert "default/p" in queue.queue.gated
    queue.see(a_node("open"))
    assert "default/p" in queue.queue.active
