"""A daemon names the namespace that has updates held back."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from tests.core.test_held_updates import labels
from tests.daemon.world import world


async def test_flood_of_labels_is_logged_and_limited(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with world(tmp_path, nodes=1) as w, w.daemon() as daemon:
            w.add_pod("loud")
            await w.until(lambda: bool(w.node_of("loud")))
            for number in range(100):
                changed: dict[str, str | None] = {**dict.fromkeys(labels(number - 1))}
                patch = {"metadata": {"labels": {**changed, **labels(number)}}}
                w.cluster.patch("pods", "loud", patch, namespace="default")
            w.add_pod("next")
            # It was created after the changes, so the watch shows it after them.
            await w.until(lambda: bool(w.node_of("next")))
            assert len(daemon.engine.held_updates) == 1
    event = "updates held back"
    assert [entry["namespace"] for entry in logs if entry["event"] == event] == ["default"]
