"""docs/how-to/show.md names every field of ``asched show -o json``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asched.audit.evictions import (
    BeneficiaryResult,
    EvictionKind,
    EvictionReport,
    EvictionResult,
)
from asched.audit.gangs import GangPhase, GangSummary
from asched.audit.group_history import CauseKind, CauseLink, GroupHistory
from asched.audit.groups import GroupExplanation, GroupMember, GroupReason
from asched.audit.pod_state import PendingPod, PendingPods, PodIdentity
from asched.audit.queue_log import (
    QueueAmounts,
    QueueHistory,
    QueuePoint,
    SessionDecisions,
    SessionPart,
)
from asched.audit.queues import JobInOrder, QueuesReport, QueueState, SessionQueues

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "show.md"
STRUCTS = (
    EvictionReport, PodIdentity, QueuesReport, SessionQueues, QueueState, JobInOrder, QueueHistory,
    QueuePoint, QueueAmounts, SessionDecisions, SessionPart, GangSummary, GroupExplanation,
    GroupReason, GroupMember, GroupHistory, CauseLink, PendingPod, PendingPods,
)  # fmt: skip


def words() -> set[str]:
    return {*re.findall(r"`(\w+)`", PAGE.read_text())}


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_is_on_the_page(struct: Any) -> None:
    assert {*struct.__struct_encode_fields__} - words() == set()


@pytest.mark.parametrize(
    "kind", [EvictionKind, EvictionResult, BeneficiaryResult, GangPhase, CauseKind]
)
def test_every_value_is_on_the_page(kind: Any) -> None:
    assert {each.value for each in kind} - words() == set()
