"""Reads from a cluster why pods and nodes must not be disrupted.

These are fields of pods and nodes that scheduling does not read, so the state does not hold them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

import msgspec

from asched.kube.client import ApiClient
from asched.kube.errors import ApiError, NoResponseError
from asched.model.nesting import decode_any_depth
from asched.state.consolidation_records import ConsolidationSettings

DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PAGE: Final = 500
_MEMORY: Final = "Memory"


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _EmptyDir(msgspec.Struct, frozen=True):
    medium: str = ""


class _Volume(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    empty_dir: _EmptyDir | None = None
    host_path: dict[str, object] | None = None

    @property
    def is_local(self) -> bool:
        """As the cluster autoscaler counts: the node has the data."""
        in_memory = self.empty_dir is not None and self.empty_dir.medium == _MEMORY
        return self.host_path is not None or (self.empty_dir is not None and not in_memory)


class _Spec(msgspec.Struct, frozen=True):
    volumes: tuple[_Volume, ...] = ()


class DisruptedObject(msgspec.Struct, frozen=True):
    """The fields of a pod or node that say whether it may be disrupted."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}


class _ListMetadata(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    items: tuple[DisruptedObject, ...] = ()
    metadata: _ListMetadata = _ListMetadata()


_decoder = msgspec.json.Decoder(_Page)


class ClusterReadError(Exception):
    """The cluster could not be read. The text is one line for the user."""


async def with_facts(
    client: ApiClient, settings: ConsolidationSettings, *, local_storage: bool
) -> ConsolidationSettings:
    """The settings with what the pods and nodes of the cluster forbid now.

    ``local_storage``: whether pods with emptyDir or hostPath volumes may be evicted. Raises
    :class:`ClusterReadError`.
    """
    pods = [pod async for pod in _listed(client, "/api/v1/pods")]
    nodes = [node async for node in _listed(client, "/api/v1/nodes")]
    return msgspec.structs.replace(
        settings,
        unmovable_pods=dict(_reasons(pods, local_storage=local_storage)),
        unmovable_nodes=dict(_node_reasons(nodes)),
        deletion_costs=dict(_deletion_costs(pods)),
    )


async def _listed(client: ApiClient, path: str) -> AsyncIterator[DisruptedObject]:
    params = {"limit": str(_PAGE)}
    while True:
        try:
            page = decode_any_depth(_decoder, await client.request("GET", path, params=params))
        except (ApiError, NoResponseError, msgspec.DecodeError) as error:
            raise ClusterReadError(f"{path} cannot be listed: {error}") from None
        for item in page.items:
            yield item
        if not page.metadata.continue_token:
            return
        params["continue"] = page.metadata.continue_token


def _reasons(pods: list[DisruptedObject], *, local_storage: bool) -> Iterator[tuple[str, str]]:
    """By uid, why a pod must not be evicted."""
    for pod in pods:
        uid, annotations = pod.metadata.uid, pod.annotations
        safe = annotations.get(SAFE_TO_EVICT, "")
        if annotations.get(DO_NOT_DISRUPT) == "true":
            yield uid, f"has annotation {DO_NOT_DISRUPT}=true"
        elif safe == "false":
            yield uid, f"has annotation {SAFE_TO_EVICT}=false"
        elif not local_storage and safe != "true":
            local = [volume.name for volume in pod.spec.volumes if volume.is_local]
            if local:
                yield uid, f"has local storage (volume {local[0]})"


def _node_reasons(nodes: list[DisruptedObject]) -> Iterator[tuple[str, str]]:
    """By name, why a node must not be freed."""
    for node in nodes:
        for annotation in (DO_NOT_DISRUPT, SCALE_DOWN_DISABLED):
            if node.annotations.get(annotation) == "true":
                yield node.metadata.name, f"has annotation {annotation}=true"


def _deletion_costs(pods: list[DisruptedObject]) -> Iterator[tuple[str, int]]:
    for pod in pods:
        text = pod.annotations.get(POD_DELETION_COST, "")
        if text.lstrip("-").isdecimal():
            yield pod.metadata.uid, int(text)
