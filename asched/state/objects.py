"""The objects of the state other than pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, groupby
from typing import Final, TypeVar, cast

from asched.framework.caching import ChangeLog
from asched.framework.cluster import ObjectChanges
from asched.model.custom import CustomObject, CustomResource
from asched.model.meta import Object
from asched.model.resources import AnyObject

ObjectT = TypeVar("ObjectT", bound=Object)

LOG_LENGTH: Final = 4096
"""Changes in the log of a kind: a reader that is further behind reads all objects again."""


class ObjectStore:
    """Objects by kind and key. Only the fold changes it.

    Custom resources are recorded as :class:`CustomObject`, which needs no plugin. Plugins read them
    as structs of their own; these are created when they are first read.
    """

    def __init__(self) -> None:
        self.by_kind: dict[type[Object], dict[str, Object]] = {}
        self.api_versions: dict[str, str] = {}
        """The served version of each kind that several versions have."""
        self.seen: dict[type[Object], dict[str, tuple[Object, int]]] = {}
        """Objects with the version that they were read from. Not state: see
        :mod:`asched.state.seen_versions`."""
        self._versions: Counter[type[Object]] = Counter()
        self._custom: dict[type[CustomResource], dict[str, CustomResource]] = {}
        self._custom_versions: Counter[str] = Counter()
        self._logs: dict[type[Object] | str, ChangeLog[str]] = {}
        """By kind, or by the name of a custom resource's definition. Not state: a log that is lost
        changes no answer."""

    def of_kind(self, kind: type[Object]) -> Mapping[str, Object]:
        """The objects as they are recorded."""
        return self.by_kind.get(kind, {})

    def read(self, kind: type[ObjectT]) -> Mapping[str, ObjectT]:
        """The objects for plugins: custom resources as the plugin's own type, without those that do
        not decode as that type."""
        if issubclass(kind, CustomResource):
            return cast("Mapping[str, ObjectT]", self._typed(kind))
        return cast("Mapping[str, ObjectT]", self.by_kind.get(kind, {}))

    def version(self, *kinds: type[Object]) -> int:
        """Grows with every change of an object of these kinds."""
        versions = self._versions
        if len(kinds) == 1 and CustomObject not in versions:
            return versions.get(kinds[0], 0)
        version = 0
        for kind in kinds:
            version += versions.get(kind, 0)
        if CustomObject in versions:
            custom = (kind for kind in kinds if issubclass(kind, CustomResource))
            version += sum(self._custom_versions[kind.definition.name] for kind in custom)
        return version

    def changes(self, kind: type[Object], since: int) -> ObjectChanges:
        """See :meth:`asched.framework.cluster.Cluster.object_changes`."""
        log = self._log(kind.definition.name if issubclass(kind, CustomResource) else kind)
        recent = log.since(since) if 0 <= since <= log.cursor else None
        return ObjectChanges(log.cursor, None if recent is None else dict.fromkeys(recent).keys())

    def _log(self, kind: type[Object] | str) -> ChangeLog[str]:
        log = self._logs.get(kind)
        if log is None:
            log = self._logs[kind] = ChangeLog(LOG_LENGTH)
        return log

    def put(self, item: Object) -> Object | None:
        """Add or replace an object. Returns the one before."""
        kind = type(item)
        of_kind = self.by_kind.setdefault(kind, {})
        old = of_kind.get(item.key)
        of_kind[item.key] = item
        self._versions[kind] += 1
        self._log(kind).append(item.key)
        if isinstance(item, CustomObject):
            self._log(item.resource).append(item.object_key)
            self._custom_versions[item.resource] += 1
            for typed_kind, view in self._custom.items():
                if typed_kind.definition.name == item.resource:
                    _add_typed(view, typed_kind, item)
        return old

    def remove(self, kind: type[Object], key: str) -> Object | None:
        """Remove and return an object; None if there is none."""
        item = self.by_kind.get(kind, {}).pop(key, None)
        if item is None:
            return None
        self.seen.get(kind, {}).pop(key, None)
        self._versions[kind] += 1
        self._log(kind).append(key)
        if isinstance(item, CustomObject):
            self._log(item.resource).append(item.object_key)
            self._custom_versions[item.resource] += 1
            for typed_kind, view in self._custom.items():
                if typed_kind.definition.name == item.resource:
                    view.pop(item.object_key, None)
        return item

    def snapshot(self) -> tuple[AnyObject, ...]:
        """All objects by kind. A restored store has no place for a kind without objects, so the
        order of kinds is that of their names: equal states have equal checkpoints."""
        kinds = sorted(self.by_kind, key=lambda kind: kind.__name__)
        items = chain.from_iterable(self.by_kind[kind].values() for kind in kinds)
        return tuple(cast("Iterable[AnyObject]", items))

    def restore(self, snapshot: Iterable[AnyObject]) -> None:
        kind: type[Object]
        for kind, items in groupby(snapshot, type):
            if issubclass(kind, CustomObject):
                for item in items:
                    self.put(item)
                continue
            of_kind = self.by_kind.setdefault(kind, {})
            of_kind.update((item.key, item) for item in items)
            self._versions[kind] += len(of_kind)
            # Whoever follows the log starts over.
            self._log(kind).forget()

    def take(self, other: ObjectStore) -> None:
        """Fill an empty store with the objects of another one, which must not be used again."""
        for kind, items in other.by_kind.items():
            if issubclass(kind, CustomObject):
                self.restore(cast("Iterable[AnyObject]", items.values()))
                continue
            self.by_kind[kind] = items
            self._versions[kind] += len(items)
            self._log(kind).forget()

    def _typed(self, kind: type[CustomResource]) -> Mapping[str, CustomResource]:
        view = self._custom.get(kind)
        if view is None:
            view = self._custom[kind] = {}
            for item in self.by_kind.get(CustomObject, {}).values():
                if isinstance(item, CustomObject) and item.resource == kind.definition.name:
                    _add_typed(view, kind, item)
        return view


def _add_typed(
    view: dict[str, CustomResource], kind: type[CustomResource], item: CustomObject
) -> None:
    typed = item.typed(kind)
    if typed is None:
        view.pop(item.object_key, None)
    else:
        view[item.object_key] = typed
