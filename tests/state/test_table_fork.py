"""What a forked table shares with its origin: nothing that a pod's coming or going changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from asched.framework.pod_info import PodInfo
from asched.model.node import Taint
from asched.model.pod import ContainerPort
from asched.state.node_table import NodeTable
from asched.state.table_fork import fork
from tests.state.objects import a_node, a_pod

SHARED_ON_PURPOSE = {"names", "_objects", "_rows", "_free", "_labels", "_taint_numbers", "_images"}
"""What is said of nodes: those of a fork stay as they are."""

_NEVER_CHANGED = (
    bool, int, float, str, bytes, type(None), np.generic, msgspec.Struct, PodInfo,
)  # fmt: skip


def full_table() -> NodeTable:
    """A table whose every field holds something, what it remembers of earlier answers too."""
    table = NodeTable()
    for name in ("n0", "n1", "gone"):
        table.set_node(
            a_node(name, labels={"zone": "a"}, taints=(Taint(key="x"),), images={"app:v1": 9})
        )
    table.remove_node("gone")
    ports = (ContainerPort(host_port=80, protocol="TCP"),)
    table.add_pod("n0", PodInfo(a_pod("placed", ports=ports)))
    table.add_pod("nowhere", PodInfo(a_pod("stray", ports=ports)))
    assert table.capacity("example.com/gpu").tolist() == [0]
    assert table.fullness_on(0) != table.fullness_on(1)
    assert len(table.by_tie_break_key) == 2
    assert [info.free("cpu") for info in table.infos()[:2]] == [3500, 4000]
    assert table.image_size_bytes("app:v1")[1] == 2
    return table


def parts(held: object) -> Iterator[object]:
    """What an object holds directly."""
    if isinstance(held, Mapping):
        yield from held.keys()
        yield from held.values()
    elif isinstance(held, list | tuple | set | frozenset):
        yield from held
    yield from vars(held).values() if hasattr(held, "__dict__") else ()
    for kind in type(held).__mro__:
        slots = getattr(kind, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(held, slot):
                yield getattr(held, slot)


def changeable(held: object) -> dict[int, object]:
    """By identity, all that can be changed in what an object holds, however deep; of an array that
    is part of another one, the other one."""
    found: dict[int, object] = {}
    ahead = [held]
    while ahead:
        part = ahead.pop()
        if isinstance(part, _NEVER_CHANGED) or callable(part):
            continue
        while isinstance(part, np.ndarray) and isinstance(part.base, np.ndarray):
            part = part.base
        if id(part) in found:
            continue
        if not isinstance(part, tuple | frozenset):
            found[id(part)] = part
        if not isinstance(part, np.ndarray):
            ahead.extend(parts(part))
    return found


def shared_fields(table: NodeTable, twin: NodeTable) -> set[str]:
    """The fields through which the twin reaches something that the table can change."""
    of_table = changeable(table)
    return {name for name, held in vars(twin).items() if changeable(held).keys() & of_table.keys()}


def fields_of_its_own() -> list[str]:
    return [
        name
        for name, held in vars(full_table()).items()
        if name not in SHARED_ON_PURPOSE and changeable(held)
    ]


def test_a_fork_shares_what_is_declared_and_nothing_else() -> None:
    table = full_table()
    assert shared_fields(table, fork(table)) == SHARED_ON_PURPOSE


def test_every_field_holds_something_that_could_be_shared() -> None:
    """A container without contents would hide that what it holds is shared."""
    empty = {
        name
        for name, held in vars(full_table()).items()
        if held is None or (isinstance(held, list | dict) and not held)
    }
    assert not empty


@pytest.mark.parametrize("name", fields_of_its_own())
def test_a_field_that_a_fork_forgets_is_noticed(name: str) -> None:
    table = full_table()
    twin = fork(table)
    setattr(twin, name, getattr(table, name))
    assert shared_fields(table, twin) == {*SHARED_ON_PURPOSE, name}


@pytest.mark.parametrize(
    "name", ["_allocatable", "_requested", "_pods", "_strays", "_ports", "_views"]
)
def test_a_field_that_a_fork_copies_only_at_the_top_is_noticed(name: str) -> None:
    table = full_table()
    twin = fork(table)
    setattr(twin, name, copy.copy(getattr(table, name)))
    assert shared_fields(table, twin) == {*SHARED_ON_PURPOSE, name}


def test_a_view_of_a_column_counts_as_the_column() -> None:
    table = full_table()
    twin: Any = fork(table)
    twin._pod_count = table.pod_count[:1]
    assert shared_fields(table, twin) == {*SHARED_ON_PURPOSE, "_pod_count"}
