"""A restart decodes only the objects that changed, and sees every change."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import ClassVar

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.comparer.differences import differing_field
from asched.config.file import parse
from asched.daemon.daemon import Daemon
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal import open_journal
from asched.journal.checkpoints import write_checkpoints
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import Resource
from asched.state.checkpoint import checkpoint_with_versions, compress, encode, restore
from asched.state.records import ObjectObserved, PodUpdated
from asched.state.seen_versions import SeenVersions, VersionsSection
from asched.state.stored_form import run
from tests.daemon.test_third_party_plugins import enabled
from tests.daemon.world import OWN, TIMEOUT_S, Object, World, registry_with, world
from tests.journal import forging
from tests.kube.harness import json_bytes
from tests.state.objects import a_node, a_pod, labelled
from tests.state.profiles import DEFAULT, a_fold

REGISTRY = registry_with()
PODS = 12
GATED = OWN + "featureGates: {InPlacePodLevelResourcesVerticalScaling: false}\n"


class ReadsColor(FilterPlugin):
    """Reads an annotation."""

    name: ClassVar[str] = "ReadsColor"
    api_version: ClassVar[int] = 1
    reads_annotations = ("example.com/color",)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS


def unchanged(daemon: Daemon, resource: Resource = Resource.PODS) -> int:
    """The listed objects that the daemon did not decode."""
    (found,) = [r for r in daemon.watch.reflectors if r.resource is resource]
    return found.decoder.counts.unchanged


async def check_cluster(w: World, daemon: Daemon) -> None:
    """Wait until the daemon has seen all pods, and check that the state has them as they are."""
    await daemon.engine.synced.wait()
    await w.until(lambda: not w.unbound())
    with anyio.fail_after(TIMEOUT_S):
        while _seen(daemon) != _versions(w):
            await anyio.lowlevel.checkpoint()
    (pods,) = [r for r in daemon.watch.reflectors if r.resource is Resource.PODS]
    listed = pods.decoder.objects([msgspec.Raw(json_bytes(item)) for item in _unfinished(w)])
    assert not any(differing_field(daemon.cluster, pod) for pod in listed.objects)


def _unfinished(w: World) -> list[Object]:
    return [item for item in w.cluster.list("pods") if item["status"].get("phase") != "Succeeded"]


def _seen(daemon: Daemon) -> dict[str, int]:
    return {entry.info.uid: entry.info.seen_version for entry in daemon.cluster.pods.values()}


def _versions(w: World) -> dict[str, int]:
    metas = [item["metadata"] for item in _unfinished(w)]
    return {meta["uid"]: int(meta["resourceVersion"]) for meta in metas}


async def run_once(w: World, *plugins: type[FilterPlugin], config: str = "") -> int:
    """Run a daemon until it has everything. Returns what it did not decode."""
    async with w.daemon(config, *plugins) as daemon:
        await check_cluster(w, daemon)
        return unchanged(daemon)


def change(w: World, random: Random, number: int) -> bool:
    """Change one pod at random. Returns whether the pod of that name and uid changed."""
    name, at = f"p-{number}", "default"
    match random.randrange(8):
        case 0:
            w.cluster.patch("pods", name, {"metadata": {"labels": {"app": "new"}}}, namespace=at)
        case 1:  # not read by the scheduler
            w.cluster.patch("pods", name, {"metadata": {"annotations": {"a": "b"}}}, namespace=at)
        case 2:  # it is terminating
            w.cluster.delete("pods", name, namespace=at)
        case 3:
            w.cluster.delete("pods", name, grace_period_s=0, namespace=at)
            w.add_pod(name)
        case 4:
            phase = {"status": {"phase": "Succeeded"}}
            w.cluster.patch("pods", name, phase, subresource="status", namespace=at)
        case 5:
            w.add_pod(f"p-{number}-{random.randrange(10**9)}")
            return False
        case _:
            return False
    return True


@pytest.mark.parametrize("seed", range(3))
async def test_restart_sees_changes_made_while_it_was_down(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with world(tmp_path, nodes=3) as w:
        w.add_pods(PODS, "p")
        assert await run_once(w) == 0
        changed = {number for number in range(PODS) if change(w, random, number)}
        assert await run_once(w) == PODS - len(changed)
        await run_once(w)


async def test_restart_sees_changed_nodes(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=4) as w:
        w.add_pod("p")
        await run_once(w)
        w.cluster.patch("nodes", "n0", {"metadata": {"labels": {"zone": "a"}}})
        w.cluster.delete("nodes", "n1")
        w.cluster.delete("nodes", "n2")
        w.add_node("n2")
        async with w.daemon() as daemon:
            await check_cluster(w, daemon)
            assert unchanged(daemon, Resource.NODES) == 1
            assert unchanged(daemon, Resource.NAMESPACES) > 0
            known = daemon.cluster.objects(Node)
            assert known["n0"].labels["zone"] == "a"
            listed = {n["metadata"]["name"]: n["metadata"]["uid"] for n in w.cluster.list("nodes")}
            assert {name: node.uid for name, node in known.items()} == listed
            assert {*daemon.cluster.nodes.names} >= {*listed}


async def test_restart_after_crash_decodes_what_is_newer(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        w.add_pods(PODS, "p")
        await run_once(w)
        kept = (tmp_path / "journal.db").read_bytes()
        annotated = {"metadata": {"annotations": {"a": "b"}}}
        async with w.daemon() as daemon:
            w.cluster.patch("pods", "p-0", annotated, namespace="default")
            await check_cluster(w, daemon)
        # The journal as a crash before the second daemon's checkpoint leaves it.
        (tmp_path / "journal.db").write_bytes(kept)
        assert await run_once(w) == PODS - 1


async def test_changed_reading_decodes_all(tmp_path: Path) -> None:
    config = enabled(ReadsColor.name)
    async with world(tmp_path, nodes=3) as w:
        w.add_pods(PODS, "p")
        color = {"metadata": {"annotations": {"example.com/color": "red"}}}
        w.cluster.patch("pods", "p-0", color, namespace="default")
        await run_once(w)
        async with w.daemon(config, ReadsColor) as daemon:
            await check_cluster(w, daemon)
            assert unchanged(daemon) == 0
            read = daemon.cluster.pods["default/p-0"].info.pod.metadata.declared_annotations
            assert read == {"example.com/color": "red"}
        assert await run_once(w, ReadsColor, config=config) == PODS
        assert await run_once(w, ReadsColor, config=GATED) == 0
        assert await run_once(w, ReadsColor, config=GATED) == PODS


async def test_reload_of_reading_stores_no_versions(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        w.add_pods(PODS, "p")
        await run_once(w)
        async with w.daemon() as daemon:
            await check_cluster(w, daemon)
            await daemon.apply_config(parse(GATED, "test", REGISTRY))
        assert await run_once(w, config=GATED) == 0


async def test_checkpoint_command_keeps_versions(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        w.add_pods(PODS, "p")
        await run_once(w)
        forging.delete_proofs(w.journal)  # no checkpoint is used
        async with open_journal(str(w.journal)) as store:
            await write_checkpoints(store, REGISTRY.load)
        assert await run_once(w) == 0
        async with open_journal(str(w.journal)) as store:
            await write_checkpoints(store, REGISTRY.load)
        assert await run_once(w) == PODS


async def test_altered_version_is_not_used(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        w.add_pods(PODS, "p")
        await run_once(w)
        moved = {"metadata": {"labels": {"app": "new"}}}
        w.cluster.patch("pods", "p-0", moved, namespace="default")
        version = int(w.pod("p-0")["metadata"]["resourceVersion"])
        async with open_journal(str(w.journal), read_only=True) as store:
            found = await store.load_checkpoint()
        assert found is not None
        state = restore(found.blob, REGISTRY.load).state
        assert checkpoint_with_versions(state) == found.blob
        state.pods["default/p-0"].info.seen_version = version
        altered = checkpoint_with_versions(state)
        with forging.without_triggers(w.journal) as connection:
            connection.execute("UPDATE journal_checkpoint SET blob = ?", (altered,))
        assert await run_once(w) == 0


# -- the versions themselves ----------------------------------------------------------------------


def seen_pod(version: int = 5) -> tuple[SeenVersions, ObjectObserved]:
    fold = a_fold(*DEFAULT)
    observed = ObjectObserved(a_pod("p"), 1)
    fold.apply(observed)
    fold.state.seen.begin("reading")
    fold.state.seen.note(observed.object, version)
    return fold.state.seen, observed


def test_pod_is_unchanged_only_with_same_uid_and_version() -> None:
    seen, _ = seen_pod()
    assert seen.is_unchanged(Pod, "default/p", "pod-p", 5, 9)
    assert not seen.is_unchanged(Pod, "default/p", "pod-p", 6, 9)
    assert not seen.is_unchanged(Pod, "default/p", "other", 5, 9)
    assert not seen.is_unchanged(Pod, "default/q", "pod-p", 5, 9)
    seen.end()
    assert not seen.is_unchanged(Pod, "default/p", "pod-p", 5, 9)


def test_unknown_version_is_never_unchanged() -> None:
    seen, _ = seen_pod(version=0)
    assert not seen.is_unchanged(Pod, "default/p", "pod-p", 0, 9)


def test_record_about_pod_forgets_version() -> None:
    fold = a_fold(*DEFAULT)
    pod = a_pod("p")
    fold.apply(ObjectObserved(pod, 1))
    seen = fold.state.seen
    seen.begin("reading")
    seen.note(pod, 5)
    fold.apply(PodUpdated("default/p", "pod-p", labels={"app": "x"}, phase="Pending"))
    assert not seen.is_unchanged(Pod, "default/p", "pod-p", 5, 9)
    seen.note(labelled(pod, app="x"), 6)
    assert seen.is_unchanged(Pod, "default/p", "pod-p", 6, 9)
    seen.begin("another reading")
    assert not seen.is_unchanged(Pod, "default/p", "pod-p", 6, 9)


def test_object_that_changes_during_checkpoint_has_no_version_there() -> None:
    fold = a_fold(*DEFAULT)
    seen = fold.state.seen
    seen.begin("reading")
    for version, zone in ((5, "a"), (6, "b")):
        node = a_node("n", labels={"zone": zone})
        fold.apply(ObjectObserved(node))
        seen.note(node, version)
        if version == 5:
            section = VersionsSection(seen)
            steps = encode(fold.state, section)
    content = run(steps)
    assert seen.is_unchanged(Node, "n", "node-n", 6, 9)
    stored = restore(compress(content, section.content()), REGISTRY.load).state
    assert stored.objects(Node)["n"].labels["zone"] == "a"
    assert not stored.seen.is_unchanged(Node, "n", "node-n", 6, 9)


def test_list_of_restored_cluster_is_decoded() -> None:
    fold = a_fold(*DEFAULT)
    for number, version in ((1, 5), (2, 80)):
        fold.apply(ObjectObserved(a_pod(f"p{number}"), number))
        fold.state.seen.begin("reading")
        fold.state.seen.note(a_pod(f"p{number}"), version)
    seen = restore(checkpoint_with_versions(fold.state), REGISTRY.load).state.seen
    assert seen.reading == "reading"
    assert seen.is_unchanged(Pod, "default/p1", "pod-p1", 5, 80)
    assert not seen.is_unchanged(Pod, "default/p1", "pod-p1", 5, 79)


def test_reading_that_ends_during_checkpoint_stores_no_versions() -> None:
    fold = a_fold(*DEFAULT)
    fold.apply(ObjectObserved(a_pod("p"), 1))
    seen = fold.state.seen
    seen.begin("reading")
    section = VersionsSection(seen)
    content = run(encode(fold.state, section))
    assert section.content()
    seen.end()
    assert restore(compress(content, section.content()), REGISTRY.load).state.seen.reading == ""


@given(st.lists(st.integers(0, 2**63 - 1), max_size=9))
def test_versions_survive_checkpoint(versions: list[int]) -> None:
    fold = a_fold(*DEFAULT)
    fold.state.seen.begin("reading")
    for number, version in enumerate(versions, 1):
        fold.apply(ObjectObserved(a_pod(f"p{number}"), number))
        fold.state.seen.note(a_pod(f"p{number}"), version)
    restored = restore(checkpoint_with_versions(fold.state), REGISTRY.load).state
    assert [entry.info.seen_version for entry in restored.pods.values()] == versions
