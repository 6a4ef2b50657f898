"""Which ResourceClaims a pod uses, whether it can use them, and which changes concern it.

Source: ``resourceclaim.Name`` and ``IsForPod`` of k8s.io/dynamic-resource-allocation, 1.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from asched.framework.cluster import Cluster
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.pod_info import QueuedPod
from asched.framework.query_index import RejectedPods
from asched.model.meta import Object
from asched.model.pod import Pod, PodResourceClaim, claim_names
from asched.model.resource_claims import ResourceClaim
from asched.plugins.shared import queue_if


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


def _may_use(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether a pod names a claim."""
    return pod.namespace == claim.namespace and claim.name in claim_names(pod)


def _is_owned_by(claim: ResourceClaim, pod: Pod) -> bool:
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.uid


# -- queueing hints -------------------------------------------------------------------------------


class _ClaimUsers:
    """Rejected pods by the claims that they name. Follows the queue when it is read."""

    def __init__(self) -> None:
        self._users: dict[str, dict[str, None]] = {}
        """Keys of the pods, by key of the claim."""
        self._claims: dict[str, tuple[str, ...]] = {}
        """Keys of the claims, by key of the pod."""
        self._cursor = -1

    def of_claim(self, key: str, rejected: RejectedPods) -> Collection[str]:
        """The pods that name the claim."""
        changed = rejected.changes.since(self._cursor)
        if changed is None:
            self._users.clear()
            self._claims.clear()
            changed = [*rejected.waiting]
        self._cursor = rejected.changes.cursor
        for pod_key in changed:
            self._update(pod_key, rejected.waiting.get(pod_key))
        return self._users.get(key, ())

    def _update(self, pod_key: str, queued: QueuedPod | None) -> None:
        for claim in self._claims.pop(pod_key, ()):
            users = self._users[claim]
            users.pop(pod_key, None)
            if not users:
                del self._users[claim]
        if queued is None:
            return
        pod = queued.info.pod
        claims = tuple({f"{pod.namespace}/{name}": None for name in claim_names(pod)})
        if claims:
            self._claims[pod_key] = claims
        for claim in claims:
            self._users.setdefault(claim, {})[pod_key] = None


class ClaimHints:
    """The events of DynamicResources."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._users = _ClaimUsers()

    def events(self) -> Sequence[ClusterEventWithHint]:
        kinds, changed = EventResource, ActionType.ADD | ActionType.UPDATE
        nodes = ActionType.ADD | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_ALLOCATABLE
        generated = ActionType.UPDATE_POD_GENERATED_RESOURCE_CLAIM
        on = ClusterEventWithHint.on
        return (
            on(kinds.NODE, nodes),
            on(kinds.RESOURCE_CLAIM, changed, self.claim_changed, self.pods_concerned),
            on(kinds.TARGET_POD, generated, self.claims_generated),
            on(kinds.DEVICE_CLASS, changed),
            on(kinds.RESOURCE_SLICE, changed),
        )

    @property
    def _claims(self) -> Mapping[str, ResourceClaim]:
        return self._cluster.objects(ResourceClaim)

    def claim_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if devices became free, or if a claim of the pod is new or has another status."""
        if not isinstance(new, ResourceClaim):
            return QueueingHint.QUEUE
        released = _is_released(old, new)
        before = old.status if isinstance(old, ResourceClaim) else None
        if not released and (before == new.status or not _may_use(pod, new)):
            return QueueingHint.SKIP
        try:
            own = any(claim.uid == new.uid for claim in user_claims(pod, self._claims))
        except UnusableClaimError:
            return QueueingHint.SKIP
        return queue_if(released or own)

    def pods_concerned(
        self, rejected: RejectedPods, old: Object | None, new: Object | None
    ) -> Collection[str]:
        """The rejected pods for which :meth:`claim_changed` can return QUEUE."""
        if not isinstance(new, ResourceClaim) or _is_released(old, new):
            return rejected.waiting
        return self._users.of_claim(new.key, rejected)

    def claims_generated(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if the pod itself was updated and now has all its claims."""
        if not isinstance(new, Pod) or new.uid != pod.uid:
            return QueueingHint.SKIP
        try:
            user_claims(new, self._claims)
        except UnusableClaimError:
            return QueueingHint.SKIP
        return QueueingHint.QUEUE


def _is_released(old: Object | None, new: ResourceClaim) -> bool:
    """Whether devices became free."""
    was_allocated = isinstance(old, ResourceClaim) and old.status.allocation is not None
    return was_allocated and new.status.allocation is None
