"""Priority queues of sessions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.batch.priority_queue import BinaryHeap, priority_queue


@given(st.lists(st.integers()), st.booleans())
def test_smallest_key_is_first(numbers: list[int], live: bool) -> None:
    queue = priority_queue(int, numbers, live=live)
    assert [queue.pop() for _ in range(len(queue))] == sorted(numbers)


def test_equal_keys_keep_their_order() -> None:
    queue = priority_queue(len, ["b", "a", "cc", "c"], live=False)
    assert [queue.pop() for _ in range(len(queue))] == ["b", "a", "c", "cc"]


def test_pop_of_empty_queue_raises() -> None:
    for live in (True, False):
        with pytest.raises(IndexError):
            priority_queue(int, [], live=live).pop()


def test_heap_does_not_notice_key_changes() -> None:
    """As in Go: an element moves only when it is compared."""
    keys = {"a": 1, "b": 2, "c": 3}
    heap: BinaryHeap[str] = BinaryHeap(keys.__getitem__)
    for name in keys:
        heap.push(name)
    keys["c"] = 0
    assert heap.pop() == "a"
    assert heap.pop() == "c"


def test_ordered_queue_uses_the_keys_at_push() -> None:
    keys = {"a": 1, "b": 2}
    queue = priority_queue(keys.__getitem__, keys, live=False)
    keys["a"] = 9
    assert queue.pop() == "a"
    queue.push("a")
    assert queue.pop() == "b"
