"""A daemon notices what its watches did not deliver, and has it listed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from asched.comparer.cluster import DIFFERS
from asched.core.inputs import Change, Deleted, Upserted
from asched.daemon.daemon import Daemon
from asched.daemon.telemetry.metrics import Metrics
from asched.model.node import Node
from asched.model.resources import Resource
from tests.daemon.world import KUBE, OWN, TIMEOUT_S, World, world
from tests.state.objects import a_pod, bound

CONFIG = f"{KUBE}---\n{OWN}comparer: {{enabled: true, interval: 50ms, sliceObjects: 2}}\n"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asched.comparer.listing.PAUSE_S", 0.001)


def observe(daemon: Daemon, change: Change) -> None:
    """Deliver what a watch would: afterwards the daemon knows it as if events had been lost."""
    daemon.inbox.put_changes((change,))


async def differences(
    w: World, change: Callable[[Daemon], Change], repaired: Callable[[Daemon], bool]
) -> list[Mapping[str, Any]]:
    """The differences that are logged until the daemon has repaired its state. Meanwhile other pods
    are created, so that the watch passes the version of every list."""
    metrics = Metrics()
    with capture_logs() as logs:
        async with w.daemon(CONFIG, metrics=metrics) as daemon:
            await daemon.synced.wait()
            w.add_pods(5, "early")
            await w.until(lambda: not w.unbound())
            await later_pods(w, lambda: metric(metrics, "asched_comparisons_total") >= 1)
            observe(daemon, change(daemon))
            repairs = "asched_state_repairs_total"
            await later_pods(w, lambda: metric(metrics, repairs) > 0 and repaired(daemon))
            assert metric(metrics, "asched_comparison_failures_total") == 0
            assert metric(metrics, repairs) == 1
    assert not w.placements.violations
    return [entry for entry in logs if entry["event"] == DIFFERS]


async def later_pods(w: World, condition: Callable[[], bool]) -> None:
    """Create pods until the condition holds."""
    created = len(w.cluster.list("pods"))
    with anyio.fail_after(TIMEOUT_S):
        while not condition():
            created += 1
            w.add_pod(f"later-{created}", "1m")
            await anyio.sleep(0.2)


def metric(metrics: Metrics, name: str) -> float:
    value = metrics.registry.get_sample_value(name, {"source": "cluster"})
    assert value is not None
    return value


async def test_lost_update_of_a_node_is_found_and_repaired(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:

        def change(daemon: Daemon) -> Change:
            known, replace = daemon.cluster.objects(Node)["n1"], msgspec.structs.replace
            metadata = replace(known.metadata, labels={**known.labels, "zone": "old"})
            return Upserted(Resource.NODES, replace(known, metadata=metadata))

        found = await differences(
            w, change, lambda daemon: "zone" not in daemon.cluster.objects(Node)["n1"].labels
        )
        assert [(entry["object"], entry["field"]) for entry in found] == [
            ("n1", "metadata.labels.zone")
        ]


async def test_lost_deletion_of_a_pod_is_found_and_repaired(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        ghost = bound(a_pod("ghost"), "n0")
        found = await differences(
            w,
            lambda daemon: Upserted(Resource.PODS, ghost),
            lambda daemon: ghost.key not in daemon.cluster.pods,
        )
        assert [(entry["object"], entry["field"]) for entry in found] == [
            (ghost.key, "missing in the cluster")
        ]


async def test_lost_creation_of_a_pod_is_found_and_repaired(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        key = "default/early-3"

        def change(daemon: Daemon) -> Change:
            return Deleted(Resource.PODS, daemon.cluster.pods[key].info.pod)

        found = await differences(w, change, lambda daemon: key in daemon.cluster.pods)
        assert [(entry["object"], entry["field"]) for entry in found] == [
            (key, "missing in the state")
        ]


async def test_state_that_changes_all_the_time_does_not_differ(
    tmp_path: Path,
) -> None:
    metrics, config = Metrics(), CONFIG.replace("sliceObjects: 2", "sliceObjects: 50")
    with capture_logs() as logs:
        async with world(tmp_path, nodes=3) as w, w.daemon(config, metrics=metrics) as daemon:
            await daemon.synced.wait()
            number = 0
            while metric(metrics, "asched_comparisons_total") < 3:
                number += 1
                w.add_pod(f"p-{number}", "1m")
                if number > 5:
                    w.cluster.delete("pods", f"p-{number - 5}", namespace="default")
                w.cluster.patch("nodes", "n1", {"metadata": {"labels": {"turn": str(number)}}})
                await anyio.sleep(0.01)
            assert metric(metrics, "asched_compared_total") > 20
            assert metric(metrics, "asched_state_differences_total") == 0
    assert not [entry for entry in logs if entry["event"] == DIFFERS]
