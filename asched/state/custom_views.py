"""Custom resources as the plugins that read them see them: as structs of their own.

They are recorded in a form that needs no plugin (:mod:`asched.model.custom`). What is kept here follows
from that and is made when it is first asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

from asched.model.custom import CustomObject, CustomResource, CustomT
from asched.model.meta import Object


class CustomViews:
    """The custom resources of each declared kind, kept up with the objects of the state."""

    def __init__(self, objects_of: Mapping[type[Object], Mapping[str, Object]]) -> None:
        self._objects_of = objects_of
        self._views: dict[type[CustomResource], dict[str, CustomResource]] = {}
        self._changed: Counter[str] = Counter()

    def objects(self, kind: type[CustomT]) -> Mapping[str, CustomT]:
        """All of a kind by ``namespace/name`` (or name); those are left out that were recorded in
        a form that is no longer the kind's."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = {}
            resource = kind.definition.name
            for kept in self._objects_of.get(CustomObject, {}).values():
                if isinstance(kept, CustomObject) and kept.resource == resource:
                    _enter(view, kind, kept)
        return cast("Mapping[str, CustomT]", view)

    def version(self, kind: type[CustomResource]) -> int:
        return self._changed[kind.definition.name]

    def seen(self, item: CustomObject) -> None:
        """The object is now as given."""
        self._changed[item.resource] += 1
        for kind, view in self._views.items():
            if kind.definition.name == item.resource:
                _enter(view, kind, item)

    def gone(self, item: CustomObject) -> None:
        self._changed[item.resource] += 1
        for kind, view in self._views.items():
            if kind.definition.name == item.resource:
                view.pop(item.object_key, None)


def _enter(view: dict[str, CustomResource], kind: type[CustomResource], item: CustomObject) -> None:
    typed = item.typed(kind)
    if typed is None:
        view.pop(item.object_key, None)
    else:
        view[item.object_key] = typed
