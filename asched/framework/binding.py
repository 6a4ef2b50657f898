"""API of the binding cycle: what PreBind, Bind and PostBind plugins may use.

``docs/how-to/plugins/safety.md`` describes the limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.pod import ContainerExtendedResourceRequest
from asched.model.resource_claims import AllocationResult, ResourceClaim
from asched.model.storage import PersistentVolume, PersistentVolumeClaim


class ClaimRef(NamedTuple):
    """Identifies one PersistentVolumeClaim or ResourceClaim. A recreated claim has another UID."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, claim: PersistentVolumeClaim | ResourceClaim) -> ClaimRef:
        return cls(claim.namespace, claim.name, claim.uid)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class ExecutionMode(Enum):
    """Where the framework calls a plugin during a scheduling cycle."""

    IN_PROCESS = "loop"
    """In the daemon, as part of the decision. Calls must be fast."""
    WORKER = "worker"
    """In a separate process, which is killed if a call takes too long. Answers are recorded."""


class Permission(Enum):
    """Calls that a plugin may make to the API server. Each value is a ``BindingClient`` method."""

    BIND = "bind"
    CLAIM_VOLUME = "claim_volume"
    SELECT_NODE = "select_node"
    READ_VOLUME = "read_volume"
    READ_CLAIM = "read_claim"
    ANNOTATE = "annotate"
    ALLOCATE_CLAIM = "allocate_claim"
    RELEASE_CLAIM = "release_claim"
    READ_RESOURCE_CLAIM = "read_resource_claim"
    CREATE_SPECIAL_CLAIM = "create_special_claim"
    DELETE_SPECIAL_CLAIM = "delete_special_claim"
    PATCH_EXTENDED_RESOURCE_STATUS = "patch_extended_resource_status"


class NotPermitted(Exception):  # noqa: N818  named like Unavailable
    """The plugin made a call that its ``needs`` do not list."""


class Unavailable(Exception):  # noqa: N818  a condition, not a defect
    """The API server is not reachable."""


class BindingContext(Protocol):
    """Deadline and cancellation of a plugin call in the binding cycle."""

    @property
    def remaining_s(self) -> float:
        """Seconds until the call is cancelled; infinite if it has no limit."""

    @property
    def cancel_reason(self) -> str:
        """Why the call is cancelled: its time is up, the pod was deleted, the scheduler is stopping
        or lost leadership. Empty while the call may continue."""


class UnlimitedContext:
    """A :class:`BindingContext` without a limit."""

    remaining_s = float("inf")
    cancel_reason = ""


class BindingClient(Protocol):
    """Calls to the API server for plugins of the binding cycle.

    :attr:`context` and :meth:`wait_until` are always available. Each other method must be listed in
    :attr:`~asched.framework.interface.Plugin.needs`, or it raises :class:`NotPermitted`.
    """

    @property
    def context(self) -> BindingContext: ...

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Post the Binding. After a conflict the pod is read back to find the outcome."""

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        """Set the volume's ``claimRef``. Returns an error if another claim has it."""

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        """Set the claim's annotation ``volume.kubernetes.io/selected-node``, which starts dynamic
        provisioning for that node."""

    async def read_volume(self, name: str) -> PersistentVolume | None:
        """The volume as stored in the API server, or None. Raises :class:`Unavailable`."""

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        """The claim as stored in the API server, or None if it is gone or was recreated. Raises
        :class:`Unavailable`."""

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        """Set annotations of the pod. Returns an error if the pod is gone."""

    async def allocate_claim(
        self, claim: ClaimRef, allocation: AllocationResult | None, consumer: PodInfo
    ) -> Status:
        """Write the allocation of a ResourceClaim and reserve the claim for the pod. None only
        reserves. Success if the claim has these devices and is reserved for the pod already.

        An allocation without ``allocation_timestamp`` gets the present time.
        """

    async def release_claim(self, claim: ClaimRef, consumer: PodInfo) -> Status:
        """Remove the pod from ``reservedFor`` of a ResourceClaim. Success if the claim is gone."""

    async def read_resource_claim(self, claim: ClaimRef) -> ResourceClaim | None:
        """The ResourceClaim as stored in the API server, or None if it is gone or was recreated.
        Raises :class:`Unavailable`."""

    async def create_special_claim(
        self, pod: PodInfo, claim: ResourceClaim
    ) -> ResourceClaim | Status:
        """Create the ResourceClaim for the extended resources of the pod, with the spec of
        ``claim``. Returns the one that an earlier call with the same spec created."""

    async def delete_special_claim(self, claim: ClaimRef) -> Status:
        """Delete a claim for extended resources. Success if it is gone."""

    async def patch_extended_resource_status(
        self,
        pod: PodInfo,
        claim_name: str,
        mappings: Sequence[ContainerExtendedResourceRequest],
    ) -> Status:
        """Set ``status.extendedResourceClaimStatus`` of the pod. Returns an error if the pod is
        gone, or without mappings."""

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        """Poll ``check`` until it returns a status; None after ``timeout_s``."""
