"""Restored states keep orders of arrival, and facts about objects that were deleted since."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from asched.batch.registry import SessionRegistry
from asched.config.batch import DEFAULT_CONF, parse_conf
from asched.core.scheduler import SchedulerCore
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin, QueueSortPlugin
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.sessions import SessionSpec
from asched.framework.status import SUCCESS, Status
from asched.model.custom import CustomDefinition, CustomObject, CustomResource
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.volume_binding.plugin import VolumeBinding
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.fold import Fold
from asched.state.session_records import SessionsLoaded
from tests.cycle.scheduling import Scheduling, nodes_of
from tests.cycle.unrelated_events import a_node, a_pod, gone, made
from tests.state.description import active_in_order
from tests.state.objects import a_node as a_plain_node
from tests.state.objects import a_pod as a_plain_pod
from tests.state.profiles import loader

# -- what sessions know of resources --------------------------------------------------------------

BATCH = "batch"


def _a_session() -> SessionSpec:
    conf = parse_conf(DEFAULT_CONF, SessionRegistry.discover().action_names)
    return SessionSpec(BATCH, conf.actions, conf.tiers)


def _of_job(job: str, name: str, requests: dict[str, str], node: str = "") -> AnyObject:
    return made(
        "Pod", name, "d", annotations={"scheduling.k8s.io/group-name": job},
        spec={
            "schedulerName": BATCH, "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": requests}}],
        },
        status={"phase": "Running" if node else "Pending"},
    )  # fmt: skip


def test_restored_table_keeps_resources_that_no_node_has() -> None:
    """A job that uses a resource without capacity has the largest share."""
    scheduling = Scheduling()
    scheduling.apply(SessionsLoaded((_a_session(),)))
    scheduling.see(made("IncubatorQueue", "default", spec={"weight": 1}))
    scheduling.see(*(made("IncubatorPodGroup", job, "d", spec={"minMember": 1}) for job in "ab"))
    scheduling.see(a_node("n0"), a_node("n1", allocatable={"example.com/gpu": "1"}))
    scheduling.see(
        _of_job("a", "a0", {"cpu": "1", "example.com/gpu": "1"}, "n1"),
        _of_job("b", "b0", {"cpu": "2"}, "n0"),
        _of_job("a", "a1", {"cpu": "2"}),
        _of_job("b", "b1", {"cpu": "2"}),
    )
    gone(scheduling, a_node("n1"))
    scheduling.pass_time(2)
    made_live = SchedulerCore(scheduling).propose()
    assert _next_restored(scheduling.fold) == made_live
    assert nodes_of(made_live) == {"d/b1": "n0"}


def _next_restored(fold: Fold, *plugins: Any) -> tuple[r.Decision, ...]:
    return SchedulerCore(restore(checkpoint_of(fold.state), loader(*plugins))).propose()


# -- what is promised to claims -------------------------------------------------------------------


def _mounting(name: str, node: str, priority: int) -> Pod:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    selector = {"kubernetes.io/hostname": node}
    return a_pod(name, volumes=volumes, nodeSelector=selector, priority=priority)


def _a_claim(uid: str) -> AnyObject:
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "wait"}
    return made("PersistentVolumeClaim", "c", "d", uid=uid, spec=spec)


def test_restored_volume_binding_uses_reservation_of_current_claim() -> None:
    """The pod observed first was placed last, for the current claim."""
    plugins = (NodeAffinityPlugin, VolumeBinding)
    scheduling = Scheduling(*plugins)
    scheduling.see(*(a_node(f"n{i}") for i in range(3)))
    scheduling.see(
        made("StorageClass", "wait", provisioner="p", volumeBindingMode="WaitForFirstConsumer")
    )
    scheduling.see(_a_claim("old"))
    scheduling.see(_mounting("late", "n1", 0), _mounting("early", "n0", 1))
    assert nodes_of(scheduling.next()) == {"d/early": "n0"}
    gone(scheduling, _a_claim("old"))
    scheduling.see(_a_claim("new"))
    assert nodes_of(scheduling.next()) == {"d/late": "n1"}
    scheduling.see(_mounting("third", "n2", 0))
    restored = _next_restored(scheduling.fold, *plugins)
    assert scheduling.next() == restored
    assert isinstance(restored[0], r.Rejected)


# -- the order of the queue -----------------------------------------------------------------------


class FewestFirst(QueueSortPlugin):
    """Sorts by the number of pods that the namespace had on nodes at arrival."""

    name: ClassVar[str] = "FewestFirst"
    api_version: ClassVar[int] = 1

    def _key(self, pod: QueuedPod) -> Any:
        nodes = self.handle.cluster.nodes
        return sum(
            p.labels == pod.info.labels for row in range(nodes.size) for p in nodes.pods(row)
        )

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return bool(self._key(first) < self._key(second))

    def sort_key(self, pod: QueuedPod) -> Any:
        return (self._key(pod),)


class ByName(FewestFirst):
    """The same, with a key that has text."""

    name: ClassVar[str] = "ByName"

    def sort_key(self, pod: QueuedPod) -> Any:
        return (self._key(pod), (pod.info.key, None, 1.5, True))


class ByNothingPlain(FewestFirst):
    """The same, with keys that cannot be stored and are computed again."""

    name: ClassVar[str] = "ByNothingPlain"

    def sort_key(self, pod: QueuedPod) -> Any:
        return (0 * self._key(pod), frozenset(), 1 << 80, "\ud800")


@pytest.mark.parametrize("sort", [FewestFirst, ByName, ByNothingPlain])
def test_restored_queue_keeps_sort_keys(
    sort: type[QueueSortPlugin],
) -> None:
    scheduling = Scheduling(sort)
    scheduling.see(a_plain_node("n"))
    for number, team in enumerate(("red", "blue", "red")):
        scheduling.see(a_plain_pod(f"{team}-{number}", labels={"team": team}))
    scheduling.see(a_plain_pod("placed", labels={"team": "red"}, on="n"))
    scheduling.see(a_plain_pod("red-3", labels={"team": "red"}))
    again = restore(checkpoint_of(scheduling.state), loader(sort)).state
    order = [pod.info.name for pod in active_in_order(scheduling.state.queue)]
    assert [pod.info.name for pod in active_in_order(again.queue)] == order
    assert checkpoint_of(again) == checkpoint_of(scheduling.state)


# -- what plugins look at while they are made -----------------------------------------------------


class Rack(CustomResource):
    """A custom resource."""

    definition: ClassVar[CustomDefinition] = CustomDefinition("example.com", "v1", "racks", "Rack")
    rooms: int = 0


class Racked(FilterPlugin):
    """Passes while there are racks; reads them only after objects_version changed."""

    name: ClassVar[str] = "Racked"
    api_version: ClassVar[int] = 1
    custom_resources: ClassVar[tuple[type[CustomResource], ...]] = (Rack,)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._racks = handle.cluster.objects(Rack)
        self._version = handle.cluster.objects_version(Rack)
        self._rooms = 0

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        version = self.handle.cluster.objects_version(Rack)
        if version != self._version:
            self._version = version
            self._rooms = sum(rack.rooms for rack in self._racks.values())
        return SUCCESS if self._rooms else Status.unschedulable("no racks")


def test_restored_custom_resources_reach_plugin_that_read_them_at_init() -> None:
    scheduling = Scheduling(Racked)
    rack = CustomObject(
        metadata=ObjectMeta(name="r", uid="r"), resource="racks.example.com", content={"rooms": 1}
    )
    scheduling.see(rack, a_plain_node("n"), a_plain_pod("p"))
    restored = _next_restored(scheduling.fold, Racked)
    made_live = scheduling.next()
    assert nodes_of(made_live) == {"default/p": "n"}
    assert restored == made_live
