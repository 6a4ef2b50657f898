"""A state that does not follow from the journal is noticed, with part, object and field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asched.comparer.contents import content_differences
from asched.comparer.journal import DIFFERS, JournalComparer
from asched.daemon.daemon import Daemon
from asched.daemon.process import Runtime
from asched.journal import open_journal
from asched.journal.store import JournalStore
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.checkpoint import encode
from asched.state.cluster import ClusterState
from asched.state.observe import observe_object
from asched.state.stored_form import run
from tests.daemon.world import registry_with, world
from tests.fault_simulation.differences import plain
from tests.state.objects import a_node
from tests.state.profiles import DEFAULT, a_fold
from tests.state.test_observe import copies


def exchange_node(state: ClusterState) -> None:
    node, replace = state.objects(Node)["n1"], msgspec.structs.replace
    metadata = replace(node.metadata, labels={**node.labels, "zone": "other"})
    state.object_store.put(replace(node, metadata=metadata))


def change_rejection(state: ClusterState) -> None:
    state.pods["default/p-2"].rejection = "no reason"


def change_seed(state: ClusterState) -> None:
    state.engine.seed = 77


def forget_pod(state: ClusterState) -> None:
    del state.pods["default/p-3"]


@pytest.mark.parametrize(
    ("damage", "part", "name", "field"),
    [
        (exchange_node, "objects", "n1", "metadata.labels.zone"),
        (change_rejection, "pods", "default/p-2", "rejection"),
        (change_seed, "engine", "0", ""),
        (forget_pod, "pods", "default/p-3", ""),
    ],
)
async def test_damaged_state_is_reported(
    tmp_path: Path, damage: Callable[[ClusterState], None], part: str, name: str, field: str
) -> None:
    async with (
        world(tmp_path, nodes=2) as w,
        open_journal(str(w.journal)) as store,
        w.daemon_on(store, compare_at_end=False) as daemon,
    ):
        w.add_pods(4, "p")
        await w.until(lambda: not w.unbound())
        comparer = new_comparer(store, daemon)
        assert await compared(comparer) == []
        assert comparer.counts.compared > 4
        damage(daemon.cluster)
        found = await compared(comparer)
        assert (part, name, field) in [(e["part"], e["object"], e["field"]) for e in found]
        assert comparer.counts.differences == len(found)


async def test_daemon_that_restarts_equals_its_journal(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        config = (
            "apiVersion: asched.dev/v1\nkind: AschedConfiguration\njournal: {checkpointEvery: 5}"
        )
        async with w.daemon(config):
            w.add_pods(10, "p")
            await w.until(lambda: not w.unbound())
        async with open_journal(str(w.journal)) as store, w.daemon_on(store, config) as daemon:
            w.add_pods(10, "q")
            await w.until(lambda: not w.unbound())
            assert await compared(new_comparer(store, daemon)) == []


@given(first=st.lists(copies, max_size=6), second=st.lists(copies, max_size=6))
def test_contents_differ_where_states_differ(first: list[Pod], second: list[Pod]) -> None:
    """Both states saw other pods. The description of tests/state is another comparison."""
    one, two = state_of(first), state_of(second)
    found = content_differences(run(encode(one)), run(encode(two)))
    assert bool(found) == (plain(one) != plain(two))
    if one.pods.keys() != two.pods.keys():
        assert {"pods", "pod objects"} <= {difference.part for difference in found}
    assert content_differences(run(encode(one)), run(encode(one))) == ()


def state_of(pods: list[Pod]) -> ClusterState:
    fold = a_fold(*DEFAULT)
    items: list[AnyObject] = [a_node("n0"), a_node("n1"), *pods]
    for item in items:
        record = observe_object(fold.state, item)
        if record is not None:
            fold.apply(record)
    return fold.state


def new_comparer(store: JournalStore, daemon: Daemon) -> JournalComparer:
    return JournalComparer(
        store, registry_with().load, Runtime.of_this_process(), daemon.cluster, daemon.engine, 3
    )


async def compared(comparer: JournalComparer) -> list[Any]:
    passes = comparer.counts.passes
    with capture_logs() as logs, anyio.fail_after(60):
        await comparer.compare()
    assert comparer.counts.passes == passes + 1
    return [entry for entry in logs if entry["event"] == DIFFERS]
