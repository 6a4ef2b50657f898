"""What plugins of the binding cycle may ask about volumes and claims."""

from __future__ import annotations

from asched.framework.binding_client import Unavailable
from asched.framework.status import SUCCESS, Status
from asched.framework.volume_books import ClaimRef
from asched.kube.errors import ApiError, NoAnswerError
from asched.kube.volume_writers import VolumeOutcome, VolumeWriter
from asched.kube.writers import Done
from asched.model.resources import DecodeError
from asched.model.storage import PersistentVolume, PersistentVolumeClaim


class VolumeRequests:
    """The part of the framework's ``BindingClient`` that is about volumes: outcomes as a Status.

    A write of unknown fate is an error too: the pod is tried again, and finds the volume promised
    to its claim if it was.
    """

    def __init__(self, writer: VolumeWriter) -> None:
        self._volumes = writer

    async def claim_volume(self, volume: str, claim: ClaimRef) -> Status:
        return _status(await self._volumes.claim_volume(volume, claim))

    async def select_node(self, claim: ClaimRef, node_name: str) -> Status:
        return _status(await self._volumes.select_node(claim, node_name))

    async def read_volume(self, name: str) -> PersistentVolume | None:
        try:
            return await self._volumes.read_volume(name)
        except (ApiError, NoAnswerError, DecodeError) as error:
            raise Unavailable(str(error)) from None

    async def read_claim(self, claim: ClaimRef) -> PersistentVolumeClaim | None:
        try:
            return await self._volumes.read_claim(claim)
        except (ApiError, NoAnswerError, DecodeError) as error:
            raise Unavailable(str(error)) from None


def _status(outcome: VolumeOutcome) -> Status:
    return SUCCESS if isinstance(outcome, Done) else Status.error(outcome.message)
