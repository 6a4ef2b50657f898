"""The buffer of a standby's watches."""

from __future__ import annotations

import anyio
import pytest

from asched.core.inputs import Batch, Change, Deleted, Listed, Upserted
from asched.daemon.ha.follower import BufferedChanges
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.resources import Resource

NODES, CLAIMS = Resource.NODES, Resource.PERSISTENT_VOLUME_CLAIMS


def node(name: str, version: str = "1") -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={"v": version}))


class Engine:
    """Receives the changes after a takeover."""

    def __init__(self) -> None:
        self.got: list[Change] = []

    def put_changes(self, batch: Batch) -> None:
        self.got += batch

    async def wait_for_capacity(self) -> None:
        """Never waits."""


def test_newest_objects_are_handed_over_then_later_changes_pass() -> None:
    buffer, engine = BufferedChanges(), Engine()
    buffer.put_changes((Listed(NODES, (node("a"), node("b"), node("c"))),))
    buffer.put_changes((Upserted(NODES, node("a", "2")), Deleted(NODES, node("b"))))
    buffer.put_changes((Upserted(NODES, node("d")), Upserted(NODES, node("a", "3"))))
    buffer.forward_to(engine)
    after = Upserted(NODES, node("e"))
    buffer.put_changes((after,))
    assert engine.got == [Listed(NODES, (node("a", "3"), node("c"), node("d"))), after]


def test_list_replaces_objects_except_unreadable_ones() -> None:
    buffer, engine = BufferedChanges(), Engine()
    buffer.put_changes((Listed(NODES, (node("a"), node("b"))),))
    buffer.put_changes((Listed(NODES, (node("c"),), frozenset({"b", "z"})),))
    buffer.forward_to(engine)
    (listed,) = engine.got
    assert isinstance(listed, Listed)
    assert [item.name for item in listed.objects] == ["c", "b"]
    assert listed.unreadable == {"b", "z"}


async def test_until_listed_waits_for_missing_resources() -> None:
    buffer, wanted = BufferedChanges(), frozenset({NODES, CLAIMS})
    assert buffer.unsynced(wanted) == wanted
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(buffer.wait_for_sync, wanted)
        buffer.put_changes((Listed(NODES, ()),))
        assert buffer.unsynced(wanted) == {CLAIMS}
        buffer.put_changes((Listed(CLAIMS, ()),))
    assert buffer.unsynced(wanted) == set()


def test_change_before_any_list_raises() -> None:
    with pytest.raises(KeyError):
        BufferedChanges().put_changes((Upserted(NODES, node("a")),))
