"""Custom resources that plugins read: declared by them, recorded in a form that needs no plugin.

A plugin declares the part of a custom resource that it reads as a struct derived from
:class:`CustomResource`. What the API sends is decoded by that struct, so that nothing else is kept, and
recorded as a :class:`CustomObject`, which is the same for all of them: a journal can be folded where the
plugin is not installed any more.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from asched.model.meta import Object

CustomT = TypeVar("CustomT", bound="CustomResource")


class CustomDefinition(NamedTuple):
    """Which resource of the API it is."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def name(self) -> str:
        """What no other resource is called, as its CustomResourceDefinition: ``plural.group``."""
        return f"{self.plural}.{self.group}"


class CustomResource(Object):
    """Base of the structs: the fields are those that the plugin reads, in the API's words."""

    definition: ClassVar[CustomDefinition]


class CustomObject(Object, tag_field="kind", tag="CustomObject"):
    """A custom resource as it is recorded."""

    resource: str = ""
    """:attr:`CustomDefinition.name`."""
    content: dict[str, Any] = {}
    """What was read of it, beside the metadata, as JSON values."""

    @property
    def key(self) -> str:
        """Resource, namespace if it has one, and name."""
        return f"{self.resource}/{self.object_key}"

    @property
    def object_key(self) -> str:
        """``namespace/name``, or just the name of a cluster-scoped object."""
        return super().key

    @classmethod
    def of(cls, read: CustomResource) -> CustomObject:
        # Through JSON, so that it equals what is read from a journal.
        content = msgspec.json.decode(msgspec.json.encode(read))
        content.pop("metadata", None)
        return cls(metadata=read.metadata, resource=read.definition.name, content=content)

    def typed(self, kind: type[CustomT]) -> CustomT | None:
        """As the plugin's own struct; None where it was recorded in a form that is no longer its."""
        try:
            read = msgspec.convert(self.content, kind)
        except msgspec.ValidationError:
            return None
        return msgspec.structs.replace(read, metadata=self.metadata)
