"""Volume choices of assumed pods: volumes assumed for claims, nodes selected for claims.

The API server learns of a choice only while the pod is being bound. Until then these maps prevent
another pod from taking the same volume (``AssumeCache`` of kube-scheduler).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from asched.framework.binding import ClaimRef
from asched.model.storage import PersistentVolumeClaim


class AssumedVolume(NamedTuple):
    """An existing volume, assumed to be bound to a claim."""

    claim: ClaimRef
    volume: str


class VolumeChoice(NamedTuple):
    """How the unbound claims of a pod get volumes on one node."""

    bindings: tuple[AssumedVolume, ...] = ()
    provisions: tuple[ClaimRef, ...] = ()
    """Claims with a volume to provision for the node."""

    def reservation(self) -> dict[str, Any] | None:
        """The choice as JSON values; None if there is nothing to bind or provision."""
        if not self.bindings and not self.provisions:
            return None
        return {
            "bindings": [{"claim": [*b.claim], "volume": b.volume} for b in self.bindings],
            "provisions": [[*claim] for claim in self.provisions],
        }

    @classmethod
    def from_reservation(cls, reservation: dict[str, Any]) -> VolumeChoice:
        return cls(
            tuple(
                AssumedVolume(ClaimRef(*b["claim"]), b["volume"]) for b in reservation["bindings"]
            ),
            tuple(ClaimRef(*claim) for claim in reservation["provisions"]),
        )


class AssumedVolumes:
    """The choices of all pods that are assumed and not bound yet."""

    def __init__(self) -> None:
        self._choices: dict[str, tuple[str, VolumeChoice]] = {}
        self._volumes: dict[str, dict[str, ClaimRef]] = {}
        self._nodes: dict[str, dict[str, tuple[str, str]]] = {}

    def add(self, pod_uid: str, node: str, choice: VolumeChoice) -> None:
        self._choices[pod_uid] = node, choice
        for claim, volume in choice.bindings:
            self._volumes.setdefault(volume, {})[pod_uid] = claim
        for claim in choice.provisions:
            self._nodes.setdefault(claim.key, {})[pod_uid] = claim.uid, node

    def remove(self, pod_uid: str) -> None:
        _, choice = self._choices.pop(pod_uid, ("", VolumeChoice()))
        for _, volume in choice.bindings:
            pods = self._volumes[volume]
            del pods[pod_uid]
            if not pods:
                del self._volumes[volume]
        for claim in choice.provisions:
            nodes = self._nodes[claim.key]
            del nodes[pod_uid]
            if not nodes:
                del self._nodes[claim.key]

    def choice(self, pod_uid: str) -> VolumeChoice | None:
        held = self._choices.get(pod_uid)
        return None if held is None else held[1]

    @property
    def volumes(self) -> Iterable[str]:
        """The volumes that are assumed for any claim."""
        return self._volumes.keys()

    def volumes_of(self, claim: PersistentVolumeClaim) -> Iterable[str]:
        """The volumes assumed for a claim. Pods that share the claim assume the same volume. A
        volume assumed for a deleted claim of the same name does not count."""
        wanted = ClaimRef.of(claim)
        return [name for name, claims in self._volumes.items() if wanted in claims.values()]

    def selected_node(self, claim: PersistentVolumeClaim) -> str | None:
        """The node for which the claim's volume is provisioned. A node selected for a deleted claim
        of the same name does not count."""
        nodes = self._nodes.get(claim.key)
        if nodes is None:
            return None
        return next((node for uid, node in nodes.values() if uid == claim.uid), None)
