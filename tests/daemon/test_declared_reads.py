"""What plugins declare to read: custom resources and annotations of pods, through a whole
daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from asched.audit.replay import replay
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.reload.reloader import ReconfigurationError
from asched.framework import (
    SUCCESS,
    ActionType,
    BindingClient,
    ClusterEventWithHint,
    CycleState,
    EnqueueExtensions,
    FilterPlugin,
    NodeInfo,
    Permission,
    PodInfo,
    PreBindPlugin,
    QueueingHint,
    Status,
    custom_event,
)
from asched.journal import open_journal
from asched.model import CustomDefinition, CustomObject, CustomResource, Pod
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, ObjectDeleted, ObjectObserved, PodUpdated
from tests.daemon.test_third_party_plugins import enabled
from tests.daemon.world import KUBE, TIMEOUT_S, World, registry_with, world

SLOT = "example.com/slot"
WANTED = "example.com/wanted"


class Spec(CustomResource):
    """Only its limit is read of a Rack."""

    definition: ClassVar[CustomDefinition] = CustomDefinition("example.com", "v1", "racks", "Rack")
    limit: int = 0


class Racks(FilterPlugin, PreBindPlugin, EnqueueExtensions):
    """Lets as many pods on a node as its Rack says, and writes to each pod which slot it has."""

    name: ClassVar[str] = "Racks"
    api_version: ClassVar[int] = 1
    needs = frozenset({Permission.ANNOTATE})
    custom_resources: ClassVar[tuple[type[CustomResource], ...]] = (Spec,)
    reads_annotations = (SLOT, WANTED)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        rack = self.handle.cluster.objects(Spec).get(node.name)
        wanted = int(pod.shape.annotations.get(WANTED, "1"))
        if rack is None or node.pod_count + wanted > rack.limit:
            return Status.unschedulable("the rack is full")
        return SUCCESS

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return await client.annotate(pod, {SLOT: f"{node_name}-1"})

    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        def higher(waiting: Pod, old: Spec | None, new: Spec | None) -> QueueingHint:
            grown = (new.limit if new else 0) > (old.limit if old else 0)
            return QueueingHint.QUEUE if grown else QueueingHint.SKIP

        return (custom_event(Spec, ActionType.ADD | ActionType.UPDATE_OTHER, higher),)


def install(w: World) -> None:
    names = {"plural": "racks", "singular": "rack", "kind": "Rack", "listKind": "RackList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    w.cluster.create(
        "customresourcedefinitions",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "racks.example.com"},
            "spec": {
                "group": "example.com", "scope": "Cluster", "names": names, "versions": [version],
            },
        },
    )  # fmt: skip


def rack(name: str, limit: int, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Rack",
        "metadata": {"name": name},
        "limit": limit,
        **more,
    }


def annotated(w: World, name: str, annotations: Mapping[str, str], **spec: str) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1m"}}}
    w.cluster.create(
        "pods",
        {
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {"containers": [container], **spec},
        },
    )


async def recorded(w: World) -> list[AnyRecord]:
    async with open_journal(str(w.journal)) as store:
        return [stored.record async for stored in store.read()]


async def test_custom_resources_and_annotations_reach_the_plugin_and_the_journal(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, nodes=1) as w:
        install(w)
        async with w.daemon(enabled("Racks"), Racks) as daemon:
            w.add_pod("first")
            await w.until(lambda: "the rack is full" in w.message("first"))
            w.cluster.create("racks.example.com", rack("n0", 1, note="not read by the plugin"))
            await w.until(lambda: w.node_of("first") == "n0")
            assert w.pod("first")["metadata"]["annotations"][SLOT] == "n0-1"
            annotated(w, "two", {WANTED: "2", "example.com/secret": "hush"})
            await w.until(lambda: "the rack is full" in w.message("two"))
            w.cluster.patch("racks.example.com", "n0", {"limit": 3, "note": "nor this"})
            await w.until(lambda: w.node_of("two") == "n0")
            assert daemon.cluster.objects(Spec)["n0"].limit == 3
            with anyio.fail_after(TIMEOUT_S):
                while SLOT not in daemon.cluster.pods["default/two"].info.shape.annotations:
                    await anyio.lowlevel.checkpoint()
        async with w.daemon(enabled("Racks"), Racks) as daemon:  # from the checkpoint
            assert daemon.cluster.objects(Spec)["n0"].limit == 3
            w.cluster.delete("racks.example.com", "n0")
            with anyio.fail_after(TIMEOUT_S):
                while daemon.cluster.objects(Spec):
                    await anyio.lowlevel.checkpoint()
        records = await recorded(w)
        seen = [
            record.object.content
            for record in records
            if isinstance(record, ObjectObserved) and isinstance(record.object, CustomObject)
        ]
        assert seen == [{"limit": 1}, {"limit": 3}]
        slots = [r.annotations for r in records if isinstance(r, PodUpdated) and r.annotations]
        assert {SLOT: "n0-1"} in slots
        assert {WANTED: "2", SLOT: "n0-1"} in slots
        assert b"hush" not in w.journal.read_bytes()
        await _without_the_plugin(records)
        async with open_journal(str(w.journal)) as store:
            report = await replay(store, registry_with(Racks))
        assert report.divergence is None


async def test_a_plugin_that_comes_while_the_daemon_runs_gets_what_it_reads(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, nodes=1) as w:
        install(w)
        w.cluster.create("racks.example.com", rack("n0", 2))
        async with w.daemon("", Racks) as daemon:
            annotated(w, "before", {WANTED: "1"})
            await w.until(lambda: w.node_of("before") == "n0")
            [info] = daemon.cluster.nodes.pods(0)
            assert not info.shape.annotations
            await daemon.apply_config(parse(enabled("Racks"), "test", registry_with(Racks)))
            w.add_pod("after")
            await w.until(lambda: w.node_of("after") == "n0")
            [info, _] = daemon.cluster.nodes.pods(0)
            assert info.shape.annotations == {WANTED: "1"}


class Zone(FilterPlugin):
    """A pod goes only to the node that its annotation names."""

    name: ClassVar[str] = "Zone"
    api_version: ClassVar[int] = 1
    reads_annotations = (WANTED,)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        wanted = pod.shape.annotations.get(WANTED, node.name)
        return SUCCESS if wanted == node.name else Status.unschedulable("not there")


async def test_nothing_is_decided_without_the_annotations_that_a_new_profile_reads(
    tmp_path: Path,
) -> None:
    """A pod waits for that profile already, and is tried under it at once."""
    zoned = KUBE + (
        "profiles:\n- {schedulerName: default-scheduler}\n"
        "- {schedulerName: zoned, plugins: {multiPoint: {enabled: [{name: Zone}]}}}\n"
    )
    async with world(tmp_path, nodes=1) as w, w.daemon("", Zone) as daemon:
        annotated(w, "p", {WANTED: "far"}, schedulerName="zoned")
        w.add_pod("other")
        await w.until(lambda: w.node_of("other") == "n0")
        await daemon.apply_config(parse(zoned, "test", registry_with(Zone)))
        await w.until(lambda: bool(w.node_of("p") or w.message("p")))
        assert "not there" in w.message("p")
        w.add_node("far")
        await w.until(lambda: w.node_of("p") == "far")


class OtherSpec(CustomResource):
    """The same resource, read otherwise."""

    definition: ClassVar[CustomDefinition] = Spec.definition
    height: int = 0


class OtherRacks(Racks):
    name: ClassVar[str] = "OtherRacks"
    api_version: ClassVar[int] = 1
    custom_resources = (OtherSpec,)


async def test_one_resource_is_read_by_one_struct(tmp_path: Path) -> None:
    both = enabled("Racks}, {name: OtherRacks")
    complaint = "Racks and OtherRacks both read racks.example.com, by different structs"
    async with world(tmp_path, nodes=1) as w, w.daemon("", Racks, OtherRacks) as daemon:
        refused = parse(both, "test", registry_with(Racks, OtherRacks))
        with pytest.raises(ReconfigurationError, match=complaint):
            await daemon.apply_config(refused)


async def _without_the_plugin(records: list[AnyRecord]) -> None:
    """The journal can be folded without the plugin that defines Rack."""
    fold = Fold(ClusterState(), PluginRegistry.discover().load)
    for record in records:
        fold.apply(record)
        if isinstance(record, ObjectObserved) and isinstance(record.object, CustomObject):
            [kept] = fold.state.objects(CustomObject).values()
            assert (kept.resource, kept.object_key) == ("racks.example.com", "n0")
    assert ObjectDeleted("CustomObject", "racks.example.com/n0", kept.uid) in records
    assert not fold.state.objects(CustomObject)
