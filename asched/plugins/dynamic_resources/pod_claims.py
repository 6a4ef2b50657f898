"""Which ResourceClaims a pod uses, and whether it can use them.

Source: ``resourceclaim.Name`` and ``IsForPod`` of k8s.io/dynamic-resource-allocation, 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from asched.model.pod import Pod, PodResourceClaim
from asched.model.resource_claims import ResourceClaim


class UnusableClaimError(Exception):
    """A claim of the pod does not exist or cannot be used. The text is kube-scheduler's."""


class _ClaimName(NamedTuple):
    name: str
    generated: bool
    """From a template: the pod must own the claim."""


def user_claims(pod: Pod, claims: Mapping[str, ResourceClaim]) -> list[ResourceClaim]:
    """The claims of ``spec.resourceClaims``, in order; a claim may occur twice.

    Raises :class:`UnusableClaimError` for the first that cannot be used.
    """
    found = []
    for entry in _names(pod):
        key = f"{pod.namespace}/{entry.name}"
        claim = claims.get(key)
        if claim is None:
            raise UnusableClaimError(f'could not find ResourceClaim "{key}"')
        if claim.metadata.deletion_timestamp is not None:
            raise UnusableClaimError(f'resourceclaim "{entry.name}" is being deleted')
        if entry.generated and not _is_owned_by(claim, pod):
            raise UnusableClaimError(
                f"ResourceClaim {key} was not created for Pod {pod.key} (Pod is not owner)"
            )
        found.append(claim)
    return found


def reserved_for(claim: ResourceClaim, pod_uid: str) -> bool:
    """Whether the claim is reserved for the pod."""
    return any(consumer.uid == pod_uid for consumer in claim.status.reserved_for)


def _names(pod: Pod) -> Iterator[_ClaimName]:
    for reference in pod.spec.resource_claims:
        name = _name(pod, reference)
        if name is not None:
            yield name


def _name(pod: Pod, reference: PodResourceClaim) -> _ClaimName | None:
    """None if the pod needs no claim for this entry."""
    if reference.resource_claim_name:
        return _ClaimName(reference.resource_claim_name, False)
    if not reference.resource_claim_template_name:
        raise UnusableClaimError(
            f'pod "{pod.key}", spec.resourceClaim "{reference.name}":'
            " none of the supported fields are set"
        )
    for status in pod.status.resource_claim_statuses:
        if status.name == reference.name:
            if status.resource_claim_name is None:
                return None
            return _ClaimName(status.resource_claim_name, True)
    raise UnusableClaimError(f'pod "{pod.key}": ResourceClaim not created yet')


def _is_owned_by(claim: ResourceClaim, pod: Pod) -> bool:
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.uid
