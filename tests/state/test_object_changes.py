"""The log of changed objects, which plugins follow."""

from __future__ import annotations

from typing import ClassVar

from asched.model.custom import CustomDefinition, CustomObject, CustomResource
from asched.model.meta import ObjectMeta
from asched.model.resource_claims import DeviceClass, ResourceSlice
from asched.state.objects import LOG_LENGTH, ObjectStore


class Licence(CustomResource):
    definition: ClassVar[CustomDefinition] = CustomDefinition(
        "example.com", "v1", "licences", "Licence"
    )


def a_slice(name: str, uid: str = "") -> ResourceSlice:
    return ResourceSlice(metadata=ObjectMeta(name=name, uid=uid))


def test_first_reader_reads_all() -> None:
    store = ObjectStore()
    first = store.changes(ResourceSlice, -1)
    assert first.keys is None
    assert store.changes(ResourceSlice, first.cursor) == (first.cursor, {}.keys())


def test_reader_gets_distinct_keys_of_its_kind() -> None:
    store = ObjectStore()
    store.put(a_slice("a"))
    cursor = store.changes(ResourceSlice, -1).cursor
    for name in ("b", "a", "b", "c"):
        store.put(a_slice(name))
    store.put(DeviceClass(metadata=ObjectMeta(name="gpu")))
    store.remove(ResourceSlice, "c")
    store.remove(ResourceSlice, "unknown")
    changes = store.changes(ResourceSlice, cursor)
    assert changes.keys is not None
    assert [*changes.keys] == ["b", "a", "c"]
    assert sorted(store.read(ResourceSlice)) == ["a", "b"]
    later = store.changes(ResourceSlice, changes.cursor)
    assert later.keys is not None
    assert not later.keys


def test_slow_reader_reads_all() -> None:
    store = ObjectStore()
    store.put(a_slice("a"))
    cursor = store.changes(ResourceSlice, -1).cursor
    for _ in range(LOG_LENGTH + 1):
        store.put(a_slice("a"))
    changes = store.changes(ResourceSlice, cursor)
    assert changes.keys is None
    assert store.changes(ResourceSlice, changes.cursor).keys is not None


def test_cursor_of_another_store_reads_all() -> None:
    store = ObjectStore()
    store.put(a_slice("a"))
    assert store.changes(ResourceSlice, 5).keys is None


def test_custom_resources_have_their_own_log() -> None:
    store = ObjectStore()
    cursor = store.changes(Licence, -1).cursor
    meta = ObjectMeta(name="x")
    store.put(CustomObject(metadata=meta, resource=Licence.definition.name))
    store.put(CustomObject(metadata=meta, resource="others.example.com"))
    keys = store.changes(Licence, cursor).keys
    assert keys is not None
    assert [*keys] == ["x"]
    assert [*keys] == [*store.read(Licence)]
