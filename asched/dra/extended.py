"""Extended resources that device classes provide.

A pod may ask for devices as an extended resource of a container. The resource is named by a class,
or is the implicit one that every class has.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from datetime import UTC, datetime

from asched.model.requests import is_extended_resource
from asched.model.resource_claims import DeviceClass

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the implicit resource of a class, before the name of the class."""

_NO_TIME = datetime.min.replace(tzinfo=UTC)


def may_be_extended(resource: str) -> bool:
    """Whether a class may provide the resource (``IsDRAExtendedResourceName``)."""
    return is_extended_resource(resource) or resource.startswith(IMPLICIT_PREFIX)


class ExtendedResources:
    """The class of each extended resource, as kube-scheduler finds it after a start.

    If several classes have the same resource, the newest has it, then the one with the lower name.
    Classes count in the order of their names. A class that loses when its turn comes does not even
    get its implicit resource.
    """

    def __init__(self, classes: Iterable[DeviceClass] = ()) -> None:
        self._classes: dict[str, DeviceClass] = {}
        for item in sorted(classes, key=lambda each: each.name):
            self._add(item)

    def _add(self, item: DeviceClass) -> None:
        resource = item.spec.extended_resource_name
        if resource is not None:
            rival = self._classes.get(resource)
            # A rival of the same age has the lower name, because it came first.
            if rival is not None and _created(item) <= _created(rival):
                return
            self._classes[resource] = item
        self._classes[IMPLICIT_PREFIX + item.name] = item

    def class_of(self, resource: str) -> str | None:
        """The name of the class that provides the resource; None if there is none."""
        found = self._classes.get(resource)
        return None if found is None else found.name

    @property
    def names(self) -> KeysView[str]:
        """The resources."""
        return self._classes.keys()

    def __contains__(self, resource: object) -> bool:
        return resource in self._classes

    def __bool__(self) -> bool:
        """Whether there is any class."""
        return bool(self._classes)


def _created(item: DeviceClass) -> datetime:
    return item.metadata.creation_timestamp or _NO_TIME
