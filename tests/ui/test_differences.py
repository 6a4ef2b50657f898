"""What changed on a node between two moments, as text."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from asched.ui.cluster import ClusterPicture, ClusterSnapshot, NodeUse, difference

BEFORE = NodeUse(
    "n", True, False, ("a=1:NoSchedule",), {"zone": "x", "old": ""}, 0, {"cpu": 4000}, {}
)
AFTER = msgspec.structs.replace(
    BEFORE,
    ready=False,
    unschedulable=True,
    taints=("b=2:NoExecute",),
    labels={"zone": "y", "new": "1"},
    allocatable={"cpu": 8500, "memory": 2 << 30},
)


def changes(before: NodeUse, after: NodeUse) -> tuple[str, ...]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    old, new = (
        ClusterSnapshot(ClusterPicture(seq, at, (), (), (), {}, (node,)), {})
        for seq, node in enumerate((before, after), 1)
    )
    return tuple(text for node in difference(old, new).nodes_changed for text in node.changes)


def test_each_change_is_one_text() -> None:
    assert changes(BEFORE, AFTER) == (
        "not ready",
        "cordoned",
        "taint b=2:NoExecute added",
        "taint a=1:NoSchedule removed",
        "label zone x -> y",
        "label old  -> (none)",
        "label new (none) -> 1",
        "allocatable cpu 4 -> 8500m",
        "allocatable memory 0 -> 2Gi",
    )
    assert changes(AFTER, BEFORE)[:2] == ("ready", "uncordoned")
    assert changes(AFTER, AFTER) == ()
