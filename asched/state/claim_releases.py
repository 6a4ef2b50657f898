"""Decided releases of ResourceClaims with an outcome that is not known yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from asched.framework.cluster import PodRef
from asched.framework.interface import ReleasedClaim


class PendingClaimRelease(NamedTuple):
    """A claim to be written, and the pod for which it is released."""

    release: ReleasedClaim
    pod: PodRef


class ClaimReleases(Mapping[str, PendingClaimRelease]):
    """Pending releases by the claim's uid. Only the fold changes them."""

    def __init__(self) -> None:
        self._pending: dict[str, PendingClaimRelease] = {}

    def __getitem__(self, claim_uid: str) -> PendingClaimRelease:
        return self._pending[claim_uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pending)

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, release: ReleasedClaim, pod: PodRef) -> None:
        self._pending[release.claim.uid] = PendingClaimRelease(release, pod)

    def end(self, claim_uid: str) -> None:
        self._pending.pop(claim_uid, None)

    def snapshot(self) -> tuple[PendingClaimRelease, ...]:
        return tuple(self._pending.values())

    def restore(self, snapshot: tuple[PendingClaimRelease, ...]) -> None:
        for pending in snapshot:
            self.begin(*pending)
