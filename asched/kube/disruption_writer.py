"""Writes of consolidation: cordon nodes, and evict pods through the Eviction API."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from asched.kube.client import MERGE_PATCH, NO_RETRY, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.pod_writer import PodTarget
from asched.kube.write_outcomes import (
    PatchOutcome,
    WriteOutcome,
    WriteSucceeded,
    is_gone,
    outcome_of,
    patch,
)
from asched.model.node import Node

CONSOLIDATION_ANNOTATION: Final = "asched.dev/consolidation"
"""On nodes that consolidation cordoned; its value is the domain that is freed."""

_encode = msgspec.json.Encoder().encode
_ONCE: Final = RequestOptions(retry=NO_RETRY)


class EvictionThrottled(NamedTuple):
    """429: a PodDisruptionBudget allows no disruption now, or the API server is busy."""

    message: str
    retry_after_s: float | None


class DisruptionWriter:
    """Cordons, uncordons and evicts."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def cordon(self, node: Node, domain: str) -> PatchOutcome:
        """Make the node unschedulable, and annotate it with the domain."""
        return await self._patch(node, unschedulable=True, domain=domain)

    async def uncordon(self, node: Node) -> PatchOutcome:
        """Undo :meth:`cordon`."""
        return await self._patch(node, unschedulable=None, domain=None)

    async def _patch(
        self, node: Node, *, unschedulable: bool | None, domain: str | None
    ) -> PatchOutcome:
        # In a merge patch null removes a field. The UID is the precondition.
        metadata = {"uid": node.uid, "annotations": {CONSOLIDATION_ANNOTATION: domain}}
        body = _encode({"metadata": metadata, "spec": {"unschedulable": unschedulable}})
        path = f"/api/v1/nodes/{node.name}"
        return await patch(self._client, path, body, MERGE_PATCH, gone="the node is gone")

    async def evict(self, pod: PodTarget) -> WriteOutcome | EvictionThrottled:
        """Post an Eviction of ``policy/v1`` for that pod and no later one of its name.

        A pod that is gone is a success. A throttled eviction is not repeated here.
        """
        options = {"preconditions": {"uid": pod.uid}}
        body = _encode(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": options,
            }
        )
        try:
            await self._client.request("POST", f"{pod.path}/eviction", body=body, options=_ONCE)
        except ApiError as error:
            if error.status == 429:
                return EvictionThrottled(error.message, error.retry_after_s)
            return WriteSucceeded() if is_gone(error) else outcome_of(error)
        except NoResponseError as error:
            return outcome_of(error)
        return WriteSucceeded()
