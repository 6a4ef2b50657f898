"""A forked node table shares with its origin only what pod changes do not modify."""

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
from asched.state.node_columns import NodeColumns
from asched.state.node_table import NodeTable
from tests.state.objects import a_node, a_pod

SHARED_ON_PURPOSE = {
    "names", "label_index", "image_index", "_objects", "_rows", "_free", "_taint_numbers",
}  # fmt: skip
"""Facts about nodes, which do not change in a fork."""

_IMMUTABLE = (
    bool, int, float, str, bytes, type(None), np.generic, msgspec.Struct, PodInfo,
)  # fmt: skip


def full_table() -> NodeTable:
    """A table in which every field has contents, caches included."""
    table = NodeTable()
    for name in ("n0", "n1", "gone"):
        table.set_node(
            a_node(name, labels={"zone": "a"}, taints=(Taint(key="x"),), images={"app:v1": 9})
        )
    table.remove_node("gone")
    ports = (ContainerPort(host_port=80, protocol="TCP"),)
    table.add_pod("n0", PodInfo(a_pod("placed", ports=ports)))
    table.add_pod("nowhere", PodInfo(a_pod("orphan", ports=ports)))
    assert table.capacity("example.com/gpu").tolist() == [0]
    assert table.utilization_id(0) != table.utilization_id(1)
    assert len(table.by_tie_break_key) == 2
    assert [info.free("cpu") for info in table.infos()[:2]] == [3500, 4000]
    assert table.image_size_bytes("app:v1")[1] == 2
    return table


def parts(value: object) -> Iterator[object]:
    """The direct parts of an object."""
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    yield from vars(value).values() if hasattr(value, "__dict__") else ()
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                yield getattr(value, slot)


def mutable_parts(value: object) -> dict[int, object]:
    """The mutable parts of an object at any depth, by identity; for an array view its base
    array."""
    found: dict[int, object] = {}
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, _IMMUTABLE) or callable(part):
            continue
        while isinstance(part, np.ndarray) and isinstance(part.base, np.ndarray):
            part = part.base
        if id(part) in found:
            continue
        if not isinstance(part, tuple | frozenset):
            found[id(part)] = part
        if not isinstance(part, np.ndarray):
            pending.extend(parts(part))
    return found


def shared_fields(table: object, twin: object) -> set[str]:
    """The fields of the twin with mutable parts of the table."""
    of_table = mutable_parts(table)
    return {name for name, v in vars(twin).items() if mutable_parts(v).keys() & of_table.keys()}


def own_fields(value: object) -> list[str]:
    return [
        name
        for name, field in vars(value).items()
        if name not in SHARED_ON_PURPOSE and mutable_parts(field)
    ]


def test_fork_shares_only_declared_fields() -> None:
    table = full_table()
    assert shared_fields(table, table.fork()) == SHARED_ON_PURPOSE


def test_every_field_has_contents() -> None:
    """An empty container would hide that its contents are shared."""
    table = full_table()
    empty = {
        name
        for name, value in (vars(table) | vars(table.columns)).items()
        if value is None or (isinstance(value, list | dict) and not value)
    }
    assert not empty


@pytest.mark.parametrize("name", own_fields(full_table()))
def test_field_not_copied_by_fork_is_detected(name: str) -> None:
    table = full_table()
    twin = table.fork()
    setattr(twin, name, getattr(table, name))
    assert shared_fields(table, twin) == {*SHARED_ON_PURPOSE, name}


@pytest.mark.parametrize("name", own_fields(full_table().columns))
def test_column_not_copied_by_fork_is_detected(name: str) -> None:
    columns = full_table().columns
    twin = columns.fork()
    assert shared_fields(columns, twin) == set()
    setattr(twin, name, getattr(columns, name))
    assert shared_fields(columns, twin) == {name}


@pytest.mark.parametrize("name", ["_pods", "_pods_on_unknown_nodes", "port_index"])
def test_shallow_copy_of_a_field_is_detected(name: str) -> None:
    table = full_table()
    twin = table.fork()
    setattr(twin, name, copy.copy(getattr(table, name)))
    assert shared_fields(table, twin) == {*SHARED_ON_PURPOSE, name}


@pytest.mark.parametrize("name", ["allocatable", "requested", "_views"])
def test_shallow_copy_of_columns_is_detected(name: str) -> None:
    columns = full_table().columns
    twin = columns.fork()
    setattr(twin, name, copy.copy(getattr(columns, name)))
    assert shared_fields(columns, twin) == {name}


def test_view_of_a_column_counts_as_the_column() -> None:
    table = full_table()
    twin: Any = NodeColumns()
    twin.pod_count = table.pod_count[:1]
    assert shared_fields(table, twin) == {"pod_count"}
