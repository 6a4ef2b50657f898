"""What every API object carries, and the base of all decoded structs."""

from __future__ import annotations

from datetime import datetime
from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class ApiStruct(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False, kw_only=True
):
    """A value decoded from the API's JSON: immutable, unknown fields dropped, defaults left out.

    Only fields that scheduling reads are declared in subclasses, so nothing else (environment,
    arguments, annotations, secrets) can reach the journal. ``gc=False`` is safe because these
    values never refer back to one another; it keeps 200,000 pods out of the collector's sight.
    Dictionaries inside are never changed after decoding.
    """


class OwnerReference(ApiStruct):
    """The object that made this one."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class Annotations(ApiStruct, rename=None):
    """The few annotations that scheduling reads. All others are dropped while decoding."""

    bind_completed: str | None = msgspec.field(default=None, name="pv.kubernetes.io/bind-completed")
    selected_node: str | None = msgspec.field(
        default=None, name="volume.kubernetes.io/selected-node"
    )
    storage_class: str | None = msgspec.field(
        default=None, name="volume.beta.kubernetes.io/storage-class"
    )
    migrated_plugins: str | None = msgspec.field(
        default=None, name="storage.alpha.kubernetes.io/migrated-plugins"
    )
    group_name: str | None = msgspec.field(default=None, name="scheduling.k8s.io/group-name")
    group_min_member: str | None = msgspec.field(
        default=None, name="scheduling.k8s.io/group-min-member"
    )


class ObjectMeta(ApiStruct):
    """What of an object's ``metadata`` scheduling reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    annotations: Annotations = Annotations()
    declared_annotations: dict[str, str] = {}
    """Of a pod: the annotations that plugins declare to read (``Plugin.reads_annotations``). The API has
    no field of this name."""

    @property
    def controller(self) -> OwnerReference | None:
        """The one owner reference marked ``controller: true``, if any."""
        for reference in self.owner_references:
            if reference.controller:
                return reference
        return None


class Object(ApiStruct):
    """Any watched object. ``key`` is how caches and journal subjects name it."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def key(self) -> str:
        """``namespace/name``, or just the name of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
