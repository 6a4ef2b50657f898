"""Scheduling Events, read through core/v1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.suite import WORKERS, Suite, on_node, pause_pod, suite


def _events(s: Suite, pod: str, reason: str) -> list[dict[str, Any]]:
    return [
        event
        for event in s.cluster.list("events", namespace="default")
        if event["involvedObject"]["name"] == pod and event["reason"] == reason
    ]


async def test_bound_pod_has_scheduled_event(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        node = await s.run(pause_pod("pod"))
        await s.until(lambda: bool(_events(s, "pod", "Scheduled")))
        (event,) = _events(s, "pod", "Scheduled")
        assert event["type"] == "Normal"
        assert event["metadata"]["name"].startswith("pod.")
        assert event["message"] == f"Successfully assigned default/pod to {node}"
        assert event["reportingComponent"] == "default-scheduler"


async def test_rejected_pod_has_failed_scheduling_event(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        s.create(pause_pod("pod", nodeSelector={"is": "wanted"}))
        await s.until(lambda: bool(_events(s, "pod", "FailedScheduling")))
        (event,) = _events(s, "pod", "FailedScheduling")
        assert event["type"] == "Warning"
        assert event["metadata"]["name"].startswith("pod.")
        assert event["message"] == (
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 node(s) didn't match"
            " Pod's node affinity/selector. no new claims to deallocate, preemption: 0/4 nodes are"
            " available: 4 Preemption is not helpful for scheduling."
        )
        await s.label_node(WORKERS[0], **{"is": "wanted"})
        await s.running("pod")
        await s.until(lambda: bool(_events(s, "pod", "Scheduled")))


async def test_pod_with_node_name_has_no_scheduled_event(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        assert await s.run(pause_pod("static", nodeName=WORKERS[1])) == WORKERS[1]
        await s.run(pause_pod("other", affinity=on_node(WORKERS[1])))
        await s.until(lambda: bool(_events(s, "other", "Scheduled")))
        assert not _events(s, "static", "Scheduled")
