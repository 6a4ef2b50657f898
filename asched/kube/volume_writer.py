"""Writes to volumes and claims before a pod is bound (``bindAPIUpdate`` of kube-scheduler).

kube-scheduler writes back the whole object under its resourceVersion. Here only the fields that
scheduling reads are kept, so the object is read, checked for concurrent changes, and patched under
the resourceVersion just read. The permissions are those of the built-in ClusterRole
``system:volume-scheduler``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from asched.framework.binding import ClaimRef
from asched.kube.client import MERGE_PATCH, ApiClient
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.write_outcomes import (
    IDEMPOTENT,
    WriteOutcome,
    WriteRejected,
    WriteSucceeded,
    outcome_of,
)
from asched.model.nesting import decode_any_depth
from asched.model.resources import DecodeError, Resource, decode
from asched.model.storage import PersistentVolume, PersistentVolumeClaim

BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_TRIES = 3
"""Attempts to read and patch an object that others modify concurrently."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Reference(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    claim_ref: _Reference | None = None
    volume_name: str = ""


class _Present(msgspec.Struct, frozen=True):
    """The fields of a volume or claim that a patch depends on."""

    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


_present_decoder = msgspec.json.Decoder(_Present)
_encode = msgspec.json.Encoder().encode

_Plan = Callable[[_Present], "dict[str, Any] | WriteOutcome"]
"""The patch of the present object, or the outcome if it needs none."""


class VolumeWriter:
    """Binds volumes to claims and selects nodes for provisioning."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def claim_volume(self, volume: str, claim: ClaimRef) -> WriteOutcome:
        """Set the volume's claimRef, so that the volume controller binds the two."""

        def plan(present: _Present) -> dict[str, Any] | WriteOutcome:
            held = present.spec.claim_ref
            if held is not None and _is_other(held, claim):
                by = f"{held.namespace}/{held.name}"
                return WriteRejected(f'volume "{volume}" is already claimed by {by}', 409)
            if held is not None and held.uid:
                return WriteSucceeded()
            reference = {
                "kind": "PersistentVolumeClaim",
                "apiVersion": "v1",
                "namespace": claim.namespace,
                "name": claim.name,
                "uid": claim.uid,
            }
            patch: dict[str, Any] = {"spec": {"claimRef": reference}}
            if held is None:
                patch["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
            return patch

        return await self._change(_volume_path(volume), plan)

    async def select_node(self, claim: ClaimRef, node_name: str) -> WriteOutcome:
        """Set the node for which the claim's volume is to be provisioned."""

        def plan(present: _Present) -> dict[str, Any] | WriteOutcome:
            if present.metadata.uid != claim.uid:
                return WriteRejected(f'claim "{claim.key}" was replaced by another one', 409)
            selected = (present.metadata.annotations or {}).get(SELECTED_NODE)
            if selected == node_name:
                return WriteSucceeded()
            if selected is not None:
                return WriteRejected(
                    f'node {selected} is already selected for claim "{claim.key}"', 409
                )
            if present.spec.volume_name:
                return WriteRejected(f'claim "{claim.key}" is already bound', 409)
            return {"metadata": {"annotations": {SELECTED_NODE: node_name}}}

        return await self._change(_claim_path(claim), plan)

    async def read_volume(self, name: str) -> PersistentVolume | None:
        """None if there is none. Raises ApiError, NoResponseError and DecodeError."""
        body = await self._read(_volume_path(name))
        found = None if body is None else decode(Resource.PERSISTENT_VOLUMES, body)
        return found if isinstance(found, PersistentVolume) else None

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        """The present claim, None if it is gone. Raises as :meth:`read_volume`."""
        body = await self._read(_claim_path(claim))
        found = None if body is None else decode(Resource.PERSISTENT_VOLUME_CLAIMS, body)
        if isinstance(found, PersistentVolumeClaim) and found.uid == claim.uid:
            return found
        return None

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self._client.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _change(self, path: str, plan: _Plan) -> WriteOutcome:
        try:
            for _ in range(_TRIES):
                outcome = await self._change_once(path, plan)
                if outcome is not None:
                    return outcome
        except (ApiError, NoResponseError) as error:
            return outcome_of(error)
        except (msgspec.DecodeError, DecodeError) as error:
            return WriteRejected(str(error))
        return WriteRejected("the object was modified concurrently", 409)

    async def _change_once(self, path: str, plan: _Plan) -> WriteOutcome | None:
        """None if the object was modified between reading and patching."""
        body = await self._client.request("GET", path)
        present = decode_any_depth(_present_decoder, body)
        patch = plan(present)
        if not isinstance(patch, dict):
            return patch
        # Preconditions: the API server rejects a patch of another object or a later state of it.
        metadata = patch.setdefault("metadata", {})
        metadata["uid"] = present.metadata.uid
        metadata["resourceVersion"] = present.metadata.resource_version
        try:
            await self._client.request(
                "PATCH", path, body=_encode(patch), content_type=MERGE_PATCH, options=IDEMPOTENT
            )
        except ApiError as error:
            if error.status == 409:
                return None
            raise
        return WriteSucceeded()


def _is_other(held: _Reference, claim: ClaimRef) -> bool:
    return (held.namespace, held.name) != (claim.namespace, claim.name) or held.uid not in (
        "",
        claim.uid,
    )


def _volume_path(name: str) -> str:
    return f"/api/v1/persistentvolumes/{name}"


def _claim_path(claim: ClaimRef) -> str:
    return f"/api/v1/namespaces/{claim.namespace}/persistentvolumeclaims/{claim.name}"
