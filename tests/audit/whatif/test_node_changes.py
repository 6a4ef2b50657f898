"""Nodes added to a recorded history, or removed from it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asched.audit.lookup import AuditError
from asched.audit.whatif.candidate import (
    WhatIfProgress,
    WhatIfSettings,
    candidate_config,
    compare_candidate,
)
from asched.audit.whatif.comparison import Comparison
from asched.audit.whatif.node_changes import (
    AddedNodes,
    NodeChanges,
    parse_node_changes,
    with_node_changes,
)
from asched.audit.whatif.node_devices import NodeDevices
from asched.journal.memory import MemoryStore
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.resource_claims import Device, ResourcePool, ResourceSlice, ResourceSliceSpec
from asched.model.storage import CSINode
from asched.simulator.trace import EndReason, ObjectSet, WorkloadTrace
from tests.audit.recording import REGISTRY, Recording, node, pod
from tests.audit.whatif.histories import history_of, owned, store_by_turns
from tests.plugins.dynamic_resources.objects import a_claim, a_class, a_pod, a_slice


def full_cluster() -> Recording:
    """A node with one pod, and a second pod without room."""
    recording = Recording()
    recording.see(node("n0", "4"))
    recording.turn(10)
    recording.see(owned(pod("first", "4"), "owner"))
    recording.bind(recording.decide())
    recording.turn(20)
    recording.see(pod("second", "4"))
    recording.decide()
    recording.turn(30)
    return recording


async def compared(recording: Recording, add: str = "", remove: str = "") -> Comparison:
    store = MemoryStore()
    await store_by_turns(recording.records, store)
    settings = WhatIfSettings(add_nodes=add, remove_nodes=remove)
    return await compare_candidate(store, candidate_config(settings, None, REGISTRY))


async def test_added_node_takes_the_pending_pod() -> None:
    found = await compared(full_cluster(), add="n0=2")
    assert [one.pod for one in found.placed_in_candidate_only] == ["default/second"]
    assert found.names[1] == "recorded configuration with 2 more like n0"
    before, after = found.baseline, found.candidate
    assert (before.figures.pending_at_end, after.figures.pending_at_end) == (1, 0)
    names = {span.node.name for span in after.run.nodes}
    assert names == {"n0", "n0-added-1", "n0-added-2"}
    assert {span.node.name for span in before.run.nodes} == {"n0"}
    placed = found.report().candidate.placed
    assert (placed.seconds, placed.values) == ([0.0, 10.0, 20.0], [0.0, 1.0, 2.0])


async def test_removed_node_has_no_pods() -> None:
    found = await compared(full_cluster(), remove="n0")
    assert found.candidate.figures.placed == 0
    assert [one.pod for one in found.placed_in_baseline_only] == ["default/first"]


async def test_pod_of_a_removed_node_is_created_again_elsewhere() -> None:
    recording = Recording()
    recording.see(node("n0", "4"), owned(pod("web", "1", nodeName="n0"), "owner"), node("n1", "4"))
    recording.turn(10)
    found = await compared(recording, remove="n0")
    [run] = found.candidate.run.pods
    assert [(one.node, one.end) for one in run.placements] == [
        ("n0", EndReason.NODE_GONE),
        ("n1", None),
    ]
    assert found.report().candidate.evicted.values[-1] == 1.0


async def test_copy_has_its_own_name_and_the_limits_of_the_template() -> None:
    history = await history_of(full_cluster())
    template = next(e.object for e in history.trace.events if isinstance(e, ObjectSet))
    assert isinstance(template, Node)
    hostname = {"kubernetes.io/hostname": "n0", "zone": "a"}
    metadata = msgspec.structs.replace(template.metadata, labels=hostname)
    begin_ns = history.trace.begin_ns
    events: Any = (
        ObjectSet(begin_ns, msgspec.structs.replace(template, metadata=metadata)),
        ObjectSet(begin_ns, CSINode(metadata=ObjectMeta(name="n0"))),
        ObjectSet(
            begin_ns,
            _slice("s", ResourcePool(name="gpus-n0", generation=1, resource_slice_count=1)),
        ),
    )
    trace = WorkloadTrace(events, begin_ns)
    changed = with_node_changes(trace, NodeChanges((AddedNodes("n0", 1),)))
    copied, drivers, devices = [
        e.object for e in changed.trace.events[3:] if isinstance(e, ObjectSet)
    ]
    assert (copied.name, drivers.name) == ("n0-added-1", "n0-added-1")
    assert copied.metadata.labels == {"kubernetes.io/hostname": "n0-added-1", "zone": "a"}
    assert copied.uid != template.uid
    assert isinstance(devices, ResourceSlice)
    assert (devices.spec.node_name, devices.spec.pool.name) == ("n0-added-1", "gpus-n0-added-1")
    assert devices.name == "n0-added-1-s"
    assert changed.notes == ()


def _slice(name: str, pool: ResourcePool, node: str = "n0") -> ResourceSlice:
    spec = ResourceSliceSpec(driver="gpu.example.com", pool=pool, node_name=node)
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def test_first_complete_generation_of_a_pool_is_copied() -> None:
    def pool(generation: int, count: int) -> ResourcePool:
        return ResourcePool(name="n0", generation=generation, resource_slice_count=count)

    events = [
        ObjectSet(0, _slice("n0-a", pool(1, 2))),
        ObjectSet(1, _slice("n0-a", pool(2, 2))),
        ObjectSet(2, _slice("n0-b", pool(2, 2))),
        ObjectSet(3, _slice("n0-a", pool(3, 1))),
        ObjectSet(3, _slice("other", pool(1, 1), "n1")),
        ObjectSet(4, _slice("of-device", pool(1, 1), "")),
    ]
    devices = NodeDevices(events, frozenset({"n0"}))
    copies = [*devices.copies("n0", "n0-added-1")]
    assert [(one.name, one.spec.pool.name, one.spec.pool.generation) for one in copies] == [
        ("n0-added-1-a", "n0-added-1", 2),
        ("n0-added-1-b", "n0-added-1", 2),
    ]
    assert devices.shared == frozenset()


def test_devices_of_a_pool_of_several_nodes_get_a_note() -> None:
    spec = ResourceSliceSpec(
        driver="gpu.example.com",
        per_device_node_selection=True,
        devices=(Device(name="gpu-0", node_name="n0"), Device(name="gpu-1", node_name="n1")),
    )
    shared = ResourceSlice(metadata=ObjectMeta(name="all"), spec=spec)
    template = Node(metadata=ObjectMeta(name="n0", uid="u"))
    trace = WorkloadTrace((ObjectSet(0, template), ObjectSet(0, shared)), 0)
    changed = with_node_changes(trace, NodeChanges((AddedNodes("n0", 1),)))
    note = "nodes added like n0 have no devices of pools that several nodes share"
    assert changed.notes == (note,)


async def test_added_node_takes_a_pod_with_a_claim() -> None:
    recording = Recording()
    recording.see(a_class(), node("n0", "4"), a_slice("n0", "gpu-0"))
    recording.turn(10)
    for name in ("first", "second"):
        recording.see(a_claim(name), a_pod(name, name))
        recording.decide()
    recording.turn(30)
    found = await compared(recording, add="n0=1")
    assert [one.pod for one in found.placed_in_candidate_only] == ["d/second"]
    assert found.candidate.figures.pending_at_end == 0


async def test_progress_is_reported_for_each_part() -> None:
    store, seen = MemoryStore(), list[WhatIfProgress]()
    await store_by_turns(full_cluster().records, store)
    settings = WhatIfSettings(add_nodes="n0=1")
    await compare_candidate(store, candidate_config(settings, None, REGISTRY), progress=seen.append)
    assert list(dict.fromkeys(one.activity for one in seen)) == [
        "reading the journal",
        "simulating recorded configuration",
        "simulating recorded configuration with 1 more like n0",
        "comparing",
    ]
    assert all(0 <= one.done <= one.total for one in seen)
    assert any(one.done == one.total > 0 for one in seen)


@pytest.mark.parametrize(
    ("add", "remove", "message"),
    [
        ("n0", "", '--add-nodes: invalid item "n0"; expected NODE=COUNT'),
        ("n0=0", "", '--add-nodes: invalid item "n0=0"; expected NODE=COUNT'),
        ("n0=1,", "", '--add-nodes: invalid item ""'),
        ("n0=6000,n1=6000", "", "--add-nodes: at most 10,000 nodes can be added"),
        ("n1=1", "", '--add-nodes: the history has no node "n1"'),
        ("", "other", '--remove-nodes: the history has no node "other"'),
    ],
)
async def test_bad_changes(add: str, remove: str, message: str) -> None:
    with pytest.raises(AuditError) as raised:
        await compared(full_cluster(), add, remove)
    assert str(raised.value).startswith(message)


def test_empty_texts_change_nothing() -> None:
    assert parse_node_changes("", " ") == NodeChanges()
