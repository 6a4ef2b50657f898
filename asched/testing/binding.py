"""A client for plugins of the binding cycle that asks no API server: it keeps what it was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from asched.framework.binding import BindingContext, NoLimit, NotPermitted, Permission
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.framework.volume_assumptions import ClaimRef
from asched.model.meta import Object
from asched.model.storage import PersistentVolume, PersistentVolumeClaim

MOST_CHECKS = 10
"""So often ``wait_until`` asks its check; no time passes meanwhile."""


class RecordedRequest(NamedTuple):
    """One thing that the plugin asked for."""

    what: Permission
    of: str
    """The pod's or claim's key, or the volume's name."""
    value: object = None
    """The node, the claim or the annotations, where there are any."""


class MemoryClient:
    """A :class:`~asched.framework.BindingClient` for one plugin, limited to what it ``needs``: asking
    for anything else raises :class:`~asched.framework.NotPermitted`."""

    def __init__(
        self,
        plugin: type[Plugin],
        cluster: Iterable[Object] = (),
        answers: Mapping[Permission, Status] | None = None,
    ) -> None:
        """``cluster`` holds the volumes and claims that can be read. ``answers`` are those of the API
        server where it does not say Success."""
        self.asked: list[RecordedRequest] = []
        """What the plugin asked for, in order."""
        self._plugin = plugin
        self._objects = {(type(item), item.key): item for item in cluster}
        self._answers = answers or {}

    @property
    def context(self) -> BindingContext:
        return NoLimit()

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        return self._answer(Permission.BIND, pod.key, node_name)

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        return self._answer(Permission.CLAIM_VOLUME, volume, claim)

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        return self._answer(Permission.SELECT_NODE, claim.key, node_name)

    async def annotate(self, pod: PodInfo, annotations: Mapping[str, str]) -> Status:
        return self._answer(Permission.ANNOTATE, pod.key, dict(annotations))

    async def read_volume(self, name: str) -> PersistentVolume | None:
        self._answer(Permission.READ_VOLUME, name)
        found = self._objects.get((PersistentVolume, name))
        return found if isinstance(found, PersistentVolume) else None

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        self._answer(Permission.READ_CLAIM, claim.key)
        found = self._objects.get((PersistentVolumeClaim, claim.key))
        if isinstance(found, PersistentVolumeClaim) and found.uid == claim.uid:
            return found
        return None

    async def wait_until(
        self, check: Callable[[], Awaitable[Status | None]], timeout_s: float
    ) -> Status | None:
        for _ in range(MOST_CHECKS):
            answer = await check()
            if answer is not None:
                return answer
        return None

    def _answer(self, what: Permission, of: str, value: object = None) -> Status:
        if what not in self._plugin.needs:
            raise NotPermitted(f"{self._plugin.name} asks for {what.value}, which it does not need")
        self.asked.append(RecordedRequest(what, of, value))
        return self._answers.get(what, SUCCESS)
