"""Custom resources that plugins read.

Objects are recorded as :class:`CustomObject`, so that a journal can be folded without the plugin.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from asched.model.meta import Object

CustomT = TypeVar("CustomT", bound="CustomResource")


class CustomDefinition(NamedTuple):
    """Identifies a custom resource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def name(self) -> str:
        """The name of the CustomResourceDefinition: ``plural.group``."""
        return f"{self.plural}.{self.group}"


class CustomResource(Object):
    """Base of structs that declare the fields that a plugin reads."""

    definition: ClassVar[CustomDefinition]


class CustomObject(Object, tag_field="kind", tag="CustomObject"):
    """A custom resource as recorded in the journal."""

    resource: str = ""
    """:attr:`CustomDefinition.name`."""
    content: dict[str, Any] = {}
    """The declared fields, except the metadata, as JSON values."""

    @property
    def key(self) -> str:
        """Resource, namespace (if any) and name."""
        return f"{self.resource}/{self.object_key}"

    @property
    def object_key(self) -> str:
        """``namespace/name``, or just the name of a cluster-scoped object."""
        return super().key

    @classmethod
    def of(cls, read: CustomResource) -> CustomObject:
        # Encoded and decoded, to be equal to an object read from a journal.
        content = msgspec.json.decode(msgspec.json.encode(read))
        content.pop("metadata", None)
        return cls(metadata=read.metadata, resource=read.definition.name, content=content)

    def typed(self, kind: type[CustomT]) -> CustomT | None:
        """The object as the plugin's struct; None if the recorded fields do not match it."""
        try:
            read = msgspec.convert(self.content, kind)
        except msgspec.ValidationError:
            return None
        return msgspec.structs.replace(read, metadata=self.metadata)
