"""Who is served first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.batch.priority_queue import BinaryHeap, line


@given(st.lists(st.integers()), st.booleans())
def test_the_smallest_first(numbers: list[int], live: bool) -> None:
    made = line(int, numbers, live=live)
    assert [made.pop() for _ in range(len(made))] == sorted(numbers)


def test_equal_ones_in_the_order_in_which_they_came() -> None:
    made = line(len, ["b", "a", "cc", "c"], live=False)
    assert [made.pop() for _ in range(len(made))] == ["b", "a", "c", "cc"]


def test_an_empty_line_has_nobody() -> None:
    for live in (True, False):
        with pytest.raises(IndexError):
            line(int, [], live=live).pop()


def test_a_heap_does_not_notice_that_keys_change() -> None:
    """As with Go's: what changed its key stays where it was until it is compared."""
    keys = {"a": 1, "b": 2, "c": 3}
    heap: BinaryHeap[str] = BinaryHeap(keys.__getitem__)
    for name in keys:
        heap.push(name)
    keys["c"] = 0
    assert heap.pop() == "a"
    assert heap.pop() == "c"


def test_a_line_goes_by_the_keys_of_the_time_of_entry() -> None:
    keys = {"a": 1, "b": 2}
    made = line(keys.__getitem__, keys, live=False)
    keys["a"] = 9
    assert made.pop() == "a"
    made.push("a")
    assert made.pop() == "b"
