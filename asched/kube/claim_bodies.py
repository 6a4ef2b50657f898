"""Bodies of requests that write ResourceClaims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import msgspec

from asched.framework.binding import ClaimRef
from asched.kube.pod_writer import PodTarget, rfc3339
from asched.model.meta import OwnerReference
from asched.model.nesting import decode_any_depth
from asched.model.resource_claims import (
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimSpec,
)

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
SPECIAL_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the claim that serves the extended resources of a pod."""

_MAX_BASE, _SUFFIX_LENGTH = 58, 5
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Generated names as the API server makes them (``k8s.io/apiserver/pkg/storage/names``)."""

_Fields = dict[str, msgspec.Raw]


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()


class _Consumer(msgspec.Struct, frozen=True):
    uid: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allocation: AllocationResult | None = None
    reserved_for: tuple[_Consumer, ...] = ()


class _Present(msgspec.Struct, frozen=True):
    """The fields that a write depends on."""

    metadata: _Meta = _Meta()
    status: _Status = _Status()


_present_decoder = msgspec.json.Decoder(_Present)
_fields_decoder = msgspec.json.Decoder(_Fields)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_encode_ordered = msgspec.json.Encoder(order="deterministic").encode


class StoredClaim:
    """A ResourceClaim as the API server returned it.

    The ``with`` methods return bodies of updates. They contain every field as it was read, except
    the named ones.
    """

    def __init__(self, body: bytes) -> None:
        """Raises msgspec.DecodeError."""
        self._fields = decode_any_depth(_fields_decoder, body)
        present = decode_any_depth(_present_decoder, body)
        self.uid = present.metadata.uid
        self.deleting = present.metadata.deletion_timestamp is not None
        self.version = present.metadata.resource_version
        self.finalizers: Sequence[str] = present.metadata.finalizers
        self.allocation = present.status.allocation
        self.reserved_for = tuple(consumer.uid for consumer in present.status.reserved_for)
        """UIDs of the consumers."""

    def has_devices_of(self, allocation: AllocationResult) -> bool:
        """Whether the claim has the devices of ``allocation``."""
        stored = self.allocation
        return stored is not None and _devices(stored) == _devices(allocation)

    def with_finalizers(self, finalizers: Iterable[str]) -> bytes:
        metadata = self._parts("metadata")
        return _encode({**self._fields, "metadata": {**metadata, "finalizers": [*finalizers]}})

    def with_reservation(
        self, consumer: PodTarget, allocation: AllocationResult | None, now: datetime
    ) -> bytes:
        """With the allocation, unless it is None, and with the pod in ``reservedFor``. An
        allocation without a timestamp gets ``now``.

        Opaque parameters of the allocation must not change later. So they are written in the
        notation that the API server uses itself when it applies a patch: sorted, and escaped as by
        Go.
        """
        status = self._parts("status")
        if allocation is not None:
            allocated_at = allocation.allocation_timestamp or now
            timeless = msgspec.structs.replace(allocation, allocation_timestamp=None)
            fields: dict[str, Any] = msgspec.to_builtins(timeless)
            fields["allocationTimestamp"] = rfc3339(allocated_at)
            status["allocation"] = fields
        elif self.allocation is not None and self.allocation.allocation_timestamp is None:
            stored: dict[str, Any] = {**_fields_decoder.decode(status["allocation"])}
            status["allocation"] = {**stored, "allocationTimestamp": rfc3339(now)}
        entries: list[Any] = []
        if self.reserved_for:
            entries += _list_decoder.decode(status["reservedFor"])
        entries.append(_consumer(consumer))
        status["reservedFor"] = entries
        return _escaped(_encode_sorted({**self._fields, "status": status}))

    def without_reservation(self, consumer_uid: str) -> bytes:
        """A strategic merge patch that removes the pod from ``reservedFor`` of this version."""
        entry = {"$patch": "delete", "uid": consumer_uid}
        metadata = {"uid": self.uid, "resourceVersion": self.version}
        return _encode({"metadata": metadata, "status": {"reservedFor": [entry]}})

    def without_allocation(self) -> bytes:
        """Without allocation, reservations and status of devices."""
        removed = ("allocation", "reservedFor", "devices")
        status = {
            name: value for name, value in self._parts("status").items() if name not in removed
        }
        return _encode({**self._fields, "status": status})

    def _parts(self, field: str) -> dict[str, Any]:
        raw = self._fields.get(field)
        parts: dict[str, Any] = {} if raw is None else {**(_optional(raw) or {})}
        return parts


def _escaped(body: bytes) -> bytes:
    """The same JSON with the escapes of Go's encoder. These characters occur in strings only."""
    for character in "<>&\u2028\u2029":
        body = body.replace(character.encode(), rb"\u%04x" % ord(character))
    return body


def _optional(raw: msgspec.Raw) -> _Fields | None:
    return msgspec.json.decode(raw, type=_Fields | None)


def _devices(allocation: AllocationResult) -> list[tuple[object, ...]]:
    """What identifies the allocated devices. The API server changes the notation of the rest."""

    def identity(result: DeviceRequestAllocationResult) -> tuple[object, ...]:
        device = (result.driver, result.pool, result.device)
        return (result.request, *device, result.share_id, bool(result.admin_access))

    return [identity(result) for result in allocation.devices.results]


def reservation_patch(claim: ClaimRef, consumers: Iterable[PodTarget]) -> bytes:
    """A strategic merge patch that reserves the claim for these pods, too."""
    entries = [_consumer(pod) for pod in consumers]
    return _encode({"metadata": {"uid": claim.uid}, "status": {"reservedFor": entries}})


def finalizer_patch(claim: ClaimRef) -> bytes:
    """A strategic merge patch that adds the finalizer to the others."""
    return _encode({"metadata": {"uid": claim.uid, "finalizers": [FINALIZER]}})


def _consumer(pod: PodTarget) -> dict[str, str]:
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def claim_path(claim: ClaimRef) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"


def special_claim_body(pod: PodTarget, spec: ResourceClaimSpec) -> tuple[str, bytes]:
    """Name and body of the claim for the extended resources of a pod.

    The name has the form of a generated one. It depends only on the pod and the spec.
    """
    base = f"{pod.name}-extended-resources-"
    name = base[:_MAX_BASE] + _suffix(pod.uid.encode() + _encode_ordered(spec))
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True,
    }  # fmt: skip
    metadata = {
        "name": name,
        "generateName": base,
        "namespace": pod.namespace,
        "annotations": {SPECIAL_CLAIM: "true"},
        "ownerReferences": [owner],
    }
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return name, _encode({**head, "metadata": metadata, "spec": spec})


def _suffix(seed: bytes) -> str:
    number = int.from_bytes(sha256(seed).digest())
    characters = []
    for _ in range(_SUFFIX_LENGTH):
        number, index = divmod(number, len(_SUFFIX_ALPHABET))
        characters.append(_SUFFIX_ALPHABET[index])
    return "".join(characters)


def is_special_claim_of(claim: ResourceClaim, pod_uid: str) -> bool:
    """Whether the claim serves the extended resources of the pod and is not being deleted."""
    owner: OwnerReference | None = claim.metadata.controller
    return (
        claim.metadata.annotations.extended_resource_claim == "true"
        and claim.metadata.deletion_timestamp is None
        and owner is not None
        and owner.uid == pod_uid
    )
