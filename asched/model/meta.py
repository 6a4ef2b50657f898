"""Metadata of API objects, and the base of all decoded structs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, dataclass_transform

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An ``int32`` of the API. A larger number would not fit a column."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time of the API: a time without a zone cannot be compared with others."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class ApiStruct(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False, kw_only=True
):
    """A value decoded from the API's JSON: immutable, without unknown fields.

    Subclasses declare only the fields that scheduling reads, so that environment variables,
    arguments and secrets cannot reach the journal. ``gc=False`` is safe because values contain no
    reference cycles. Dictionaries are never changed after decoding.
    """


class OwnerReference(ApiStruct):
    """The owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class Annotations(ApiStruct, rename=None):
    """The annotations that scheduling reads."""

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
    required_topology: str | None = msgspec.field(default=None, name="asched.dev/required-topology")
    """Of a PodGroup: all pods need the same value of this node label."""
    preferred_topology: str | None = msgspec.field(
        default=None, name="asched.dev/preferred-topology"
    )
    """Of a PodGroup: labels of nested topology levels, the widest first, comma-separated."""
    extended_resource_claim: str | None = msgspec.field(
        default=None, name="resource.kubernetes.io/extended-resource-claim"
    )
    """``true``: the ResourceClaim serves the extended resources of the pod that owns it."""


class ObjectMeta(ApiStruct):
    """``metadata``."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    annotations: Annotations = Annotations()
    declared_annotations: dict[str, str] = {}
    """Pod annotations in ``Plugin.reads_annotations``. Not a field of the API."""

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference with ``controller: true``, if any."""
        for reference in self.owner_references:
            if reference.controller:
                return reference
        return None


class Object(ApiStruct):
    """Base of all API objects."""

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
