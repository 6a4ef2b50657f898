"""Which searches for devices are charged to a namespace: the first for claims of each form.

Answers of searches are kept, so that a pod with claims like those of an earlier pod costs little.
If all claims of a tenant differ, each one is searched on all nodes. The estimate depends on the
claims and the number of nodes only, not on what is known already: a replay charges the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from asched.model.pod import Pod, claim_names
from asched.model.resource_claims import ResourceClaim
from asched.state.attempt_budget import FREE_STEPS

SIMPLE_STEPS: Final = 2_000
"""For each node: one request for one device."""
OTHER_STEPS: Final = 4_000
"""For each node: several requests or devices, alternatives or constraints."""
MOST_STEPS: Final = 20_000_000
"""The search for devices of one attempt is stopped after this time."""
KEPT_FORMS: Final = 2_048

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class ClaimSearches:
    """The forms of claims that were charged. Only the fold changes it."""

    def __init__(self) -> None:
        self._from_ns: dict[str, int] = {}
        """When pods with claims of a form may be attempted, by namespace and digest. The oldest
        are forgotten, and charged again."""

    def turn_ns(self, form: str) -> int | None:
        """From when on pods with claims of this form are free; None if they are to be charged."""
        return self._from_ns.get(form)

    def note(self, form: str, from_ns: int) -> None:
        """A pod with claims of this form is attempted, or has a turn at that time."""
        if not form:
            return
        known_ns = self._from_ns.get(form)
        self._from_ns[form] = from_ns if known_ns is None else min(from_ns, known_ns)
        if len(self._from_ns) > KEPT_FORMS:
            del self._from_ns[next(iter(self._from_ns))]

    def snapshot(self) -> tuple[tuple[str, int], ...]:
        return tuple(self._from_ns.items())

    def restore(self, snapshot: Iterable[tuple[str, int]]) -> None:
        self._from_ns.update(snapshot)


def search_form(pod: Pod, claims: Mapping[str, ResourceClaim]) -> str:
    """The form of the claims that have to be allocated for the pod; empty if there are none."""
    specs = [claim.spec for claim in _unallocated(pod, claims)]
    if not specs:
        return ""
    return f"{pod.namespace}/{blake2b(_encode(specs), digest_size=16).hexdigest()}"


def search_steps(pod: Pod, claims: Mapping[str, ResourceClaim], nodes: int) -> int:
    """The estimated steps of the search for devices; 0 if it is free."""
    unallocated = [*_unallocated(pod, claims)]
    if not unallocated:
        return 0
    simple = len(unallocated) == 1 and _is_simple(unallocated[0])
    steps = min(nodes * (SIMPLE_STEPS if simple else OTHER_STEPS), MOST_STEPS)
    return steps if steps > FREE_STEPS else 0


def _is_simple(claim: ResourceClaim) -> bool:
    devices = claim.spec.devices
    exactly = devices.requests[0].exactly if len(devices.requests) == 1 else None
    return (
        exactly is not None
        and exactly.count == 1
        and len(exactly.selectors) <= 1
        and not devices.constraints
    )


def _unallocated(pod: Pod, claims: Mapping[str, ResourceClaim]) -> Iterator[ResourceClaim]:
    for name in claim_names(pod):
        claim = claims.get(f"{pod.namespace}/{name}")
        if claim is not None and claim.status.allocation is None:
            yield claim
