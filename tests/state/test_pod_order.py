"""Pods in order of arrival, and captures of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.framework.pod_info import PodInfo
from asched.state import pod_order
from asched.state.cluster import PodEntry
from asched.state.pod_order import CapturedPods, PodsByUid
from tests.run_size import examples
from tests.state.objects import a_pod

PODS = [PodEntry(PodInfo(a_pod(f"p{number}")), 0) for number in range(40)]


@settings(max_examples=examples(300))
@given(
    actions=st.lists(st.one_of(st.integers(0, len(PODS) - 1), st.just("capture")), max_size=120),
    filled=st.integers(0, len(PODS)),
    step=st.integers(1, 9),
)
def test_captures_have_the_pods_of_their_moment(
    actions: list[int | str], filled: int, step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_order, "CHUNK", 4)
        check(actions, filled, lambda pods: read(pods, step))


def check(
    actions: list[int | str],
    filled: int,
    read_all: Callable[[CapturedPods[PodEntry]], list[PodEntry]],
) -> None:
    by_uid: PodsByUid[PodEntry] = PodsByUid()
    expected = {entry.info.uid: entry for entry in PODS[:filled]}
    by_uid.fill(expected.values())
    captures: list[tuple[CapturedPods[PodEntry], list[PodEntry]]] = []
    for action in actions:
        if isinstance(action, str):
            captures.append((by_uid.captured(), [*expected.values()]))
            continue
        entry = PODS[action]
        if expected.pop(entry.info.uid, None):
            by_uid.remove(entry.info.uid)
        else:
            expected[entry.info.uid] = entry
            by_uid.add(entry)
        for known in PODS:
            found = by_uid.key_of(known.info.uid)
            assert found == (known.info.key if known.info.uid in expected else None)
    captures.append((by_uid.captured(), [*expected.values()]))
    for captured, pods in captures:
        assert len(captured) == len(pods)
        assert read_all(captured) == pods


def read(pods: CapturedPods[PodEntry], step: int) -> list[PodEntry]:
    """In parts, twice, as a checkpoint does."""
    parts = [pods[begin : begin + step] for begin in range(0, len(pods), step)]
    assert [pods[begin : begin + step] for begin in range(0, len(pods), step)] == parts
    return [entry for part in parts for entry in part]
