"""What plugins of the binding cycle are given to talk to the API server.

What a plugin declares of itself so that others are safe from it, and what it gets for that.

See ``docs/plugins/safety.md``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Protocol

from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.framework.volume_assumptions import ClaimRef
from asched.model.storage import PersistentVolume, PersistentVolumeClaim


class Isolation(Enum):
    """Where a plugin is asked while a decision is made."""

    LOOP = "loop"
    """In the daemon itself, as part of the decision: quick, and it has to be."""
    WORKER = "worker"
    """In a process of its own, which is ended where it takes too long. Its answers are recorded."""


class Permission(Enum):
    """What a plugin may ask of the API server: each value is a method of ``BindingClient``."""

    BIND = "bind"
    CLAIM_VOLUME = "claim_volume"
    SELECT_NODE = "select_node"
    READ_VOLUME = "read_volume"
    READ_CLAIM = "read_claim"
    ANNOTATE = "annotate"


class NotPermitted(Exception):  # noqa: N818  a state of things, as its neighbour Unavailable
    """A plugin asked for something that its ``needs`` do not name. The text says what."""


class BindingContext(Protocol):
    """How long a plugin of the binding cycle may take, and whether it still need."""

    @property
    def left_s(self) -> float:
        """Seconds until the plugin is cancelled; infinite where nothing limits it."""

    @property
    def ended(self) -> str:
        """Why the plugin is cancelled, empty while it is not: its time is up, the pod is gone, the
        scheduler stops or leads no more. What it awaits is cancelled in the same moment."""


class NoLimit:
    """The :class:`BindingContext` of work that nothing limits."""

    left_s = float("inf")
    ended = ""


class Unavailable(Exception):  # noqa: N818  a state of things, not a mistake
    """The API server could not be asked just now."""


class BindingClient(Protocol):
    """What plugins of the binding cycle may ask of the API server.

    Everything but :attr:`context` and :meth:`wait_until` has to be named in :attr:`~asched.framework.interface.Plugin.needs`, or
    raises :class:`~asched.framework.binding.NotPermitted`.
    """

    @property
    def context(self) -> BindingContext:
        """How long the plugin may take, and whether it still need."""

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        """Post the Binding. A conflict is read back before anything is concluded."""

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        """Set the volume's ``claimRef``. An error where another claim has it already."""

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        """Set the claim's annotation ``volume.kubernetes.io/selected-node``, for which its volume
        is then made."""

    async def read_volume(self, name: str) -> PersistentVolume | None:
        """The volume as the API server has it now, None if it has none of that name. Raises
        :class:`Unavailable`."""

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        """Set annotations of the pod, over those of the same names. An error where it is gone."""

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        """The very claim as the API server has it now. Raises :class:`Unavailable`."""

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        """Ask ``check`` from time to time until it answers other than None; None where it did not
        within ``timeout_s``."""
