"""What VolumeBinding has set aside: volumes promised to claims, nodes chosen for claims.

The API server learns of it only while the pod is being bound. Until it shows there, the books say
so, lest two pods take the same volume.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from asched.model.storage import PersistentVolumeClaim


class ClaimRef(NamedTuple):
    """One particular claim: a later one of the same name has another UID."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, claim: PersistentVolumeClaim) -> ClaimRef:
        return cls(claim.namespace, claim.name, claim.uid)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class AssumedVolume(NamedTuple):
    """A volume that is there already, promised to a claim."""

    claim: ClaimRef
    volume: str


class VolumeChoice(NamedTuple):
    """How a pod gets its volumes on one node, beyond those that are bound already."""

    bindings: tuple[AssumedVolume, ...] = ()
    provisions: tuple[ClaimRef, ...] = ()
    """Claims whose volumes are to be made for the node."""

    def note(self) -> dict[str, Any] | None:
        """As JSON values; None where there is nothing to do."""
        if not self.bindings and not self.provisions:
            return None
        return {
            "bindings": [{"claim": [*b.claim], "volume": b.volume} for b in self.bindings],
            "provisions": [[*claim] for claim in self.provisions],
        }

    @classmethod
    def from_note(cls, note: dict[str, Any]) -> VolumeChoice:
        return cls(
            tuple(AssumedVolume(ClaimRef(*b["claim"]), b["volume"]) for b in note["bindings"]),
            tuple(ClaimRef(*claim) for claim in note["provisions"]),
        )


class AssumedVolumes:
    """The choices of all pods that were placed and are not bound yet."""

    def __init__(self) -> None:
        self._choices: dict[str, tuple[str, VolumeChoice]] = {}
        self._volumes: dict[str, dict[str, ClaimRef]] = {}
        self._nodes: dict[str, dict[str, tuple[str, str]]] = {}

    def enter(self, pod_uid: str, node: str, choice: VolumeChoice) -> None:
        self._choices[pod_uid] = node, choice
        for claim, volume in choice.bindings:
            self._volumes.setdefault(volume, {})[pod_uid] = claim
        for claim in choice.provisions:
            self._nodes.setdefault(claim.key, {})[pod_uid] = claim.uid, node

    def strike(self, pod_uid: str) -> None:
        """Take a pod's choice out; nothing where it has none."""
        _, choice = self._choices.pop(pod_uid, ("", VolumeChoice()))
        for _, volume in choice.bindings:
            holders = self._volumes[volume]
            del holders[pod_uid]
            if not holders:
                del self._volumes[volume]
        for claim in choice.provisions:
            choosers = self._nodes[claim.key]
            del choosers[pod_uid]
            if not choosers:
                del self._nodes[claim.key]

    def choice(self, pod_uid: str) -> VolumeChoice | None:
        held = self._choices.get(pod_uid)
        return None if held is None else held[1]

    @property
    def promised(self) -> Iterable[str]:
        """The volumes promised to any claim."""
        return self._volumes.keys()

    def promised_to(self, claim: PersistentVolumeClaim) -> Iterable[str]:
        """The volumes promised to a claim. Pods that share the claim promise one together; another
        pod may have promised it to a claim of that name which is gone."""
        wanted = ClaimRef.of(claim)
        return [name for name, claims in self._volumes.items() if wanted in claims.values()]

    def chosen_node(self, claim: PersistentVolumeClaim) -> str | None:
        """The node for which the claim's volume is to be made. Whoever chose one for a claim of that
        name which is gone has no say."""
        choosers = self._nodes.get(claim.key)
        if choosers is None:
            return None
        return next((node for uid, node in choosers.values() if uid == claim.uid), None)
