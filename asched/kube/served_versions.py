"""Which version of a resource the API server serves, for resources with several known versions.

The versions are looked up before each list and each watch. So an upgrade of the API server under a
running daemon, which ends the watches, is followed by a list of the new version.
"""

from __future__ import annotations

import msgspec
import structlog

from asched.kube.client import ApiClient
from asched.kube.decoding import MalformedResponseError
from asched.kube.errors import ApiError
from asched.model.nesting import decode_any_depth
from asched.model.resources import ResourceType, WatchedResource

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _ServedName(msgspec.Struct, frozen=True):
    name: str = ""


class _ServedNames(msgspec.Struct, frozen=True):
    """``APIResourceList``."""

    resources: list[_ServedName] | None = None


_names_decoder = msgspec.json.Decoder(_ServedNames)


class ServedVersion:
    """The version of one resource that is used. The newest known one is preferred."""

    def __init__(self, client: ApiClient, resource: WatchedResource) -> None:
        newest = resource.value
        others = (newest.of_version(version) for version in newest.other_versions)
        self._candidates: tuple[ResourceType, ...] = (newest, *others)
        self._client = client
        self._label = resource.label
        self._chosen = newest
        self._found = False
        """Whether the chosen version was served at the last look-up."""

    @property
    def varies(self) -> bool:
        """Whether there is a choice."""
        return len(self._candidates) > 1

    @property
    def path(self) -> str:
        """Of the collection in the chosen version."""
        return self._chosen.path

    @property
    def api_version(self) -> str:
        """The chosen version; empty if there is only one."""
        return self._chosen.api_version if self.varies else ""

    async def changes(self) -> bool:
        """Look the versions up, and return whether another one than before is chosen.

        Raises ApiError with status 404 if none is served, and the errors of a request.
        """
        if not self.varies:
            return False
        before, known = self._chosen, self._found
        self._chosen = await self._look_up()
        self._found = True
        if known and self._chosen == before:
            return False
        log.info("API version chosen", resource=self._label, version=self._chosen.api_version)
        return self._chosen != before

    def withdraw(self) -> bool:
        """A request got 404 although the version was served at the last look-up: look it up again.

        Returns whether that may help.
        """
        found, self._found = self._found, False
        return found

    async def _look_up(self) -> ResourceType:
        for candidate in self._candidates:
            if await self._is_served(candidate):
                return candidate
        self._found = False
        raise ApiError(404, "NotFound", f"{self._label} is served in no known version")

    async def _is_served(self, candidate: ResourceType) -> bool:
        document = f"/apis/{candidate.api_version}"
        try:
            body = await self._client.request("GET", document)
        except ApiError as error:
            if error.status == 403:
                return await self._can_be_listed(candidate)
            if error.status == 404:
                return False
            raise
        try:
            listed = decode_any_depth(_names_decoder, body).resources or []
        except msgspec.DecodeError as error:
            raise MalformedResponseError(f"{document}: {error}") from None
        return any(resource.name == candidate.plural for resource in listed)

    async def _can_be_listed(self, candidate: ResourceType) -> bool:
        """For a user without access to discovery."""
        try:
            await self._client.request("GET", candidate.path, params={"limit": "1"})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True
