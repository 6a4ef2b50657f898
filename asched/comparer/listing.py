"""Reads of the comparer: a collection page by page, and single objects, with their versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from asched.kube.client import ApiClient
from asched.kube.decoding import MalformedResponseError, RawPage, resource_version
from asched.kube.errors import ApiError
from asched.kube.reflector import Reflector
from asched.kube.timing import Clock
from asched.model.meta import Object
from asched.model.resources import AnyObject

PAUSE_S: Final = 0.1
"""Between two slices. The comparer has the lowest priority: requests of pods come first."""
_MAX_PAGE: Final = 8


class ReadObject(NamedTuple):
    """An object, and the version in which it was read."""

    object: AnyObject
    version: int


class ReadSlice(NamedTuple):
    """Some objects of a list."""

    objects: tuple[ReadObject, ...]
    unreadable: frozenset[str]
    """Keys of objects that cannot be decoded."""
    list_version: int


class ReadChangedError(Exception):
    """The watch changed what it reads, so a list and the state cannot be compared."""


class ComparedCollection:
    """Reads the objects that a reflector watches, in its form and with its selector.

    Methods raise ApiError, NoResponseError and MalformedResponseError, and ReadChangedError if the
    reflector changed its selector or API version since this was created.
    """

    def __init__(
        self, client: ApiClient, clock: Clock, reflector: Reflector, slice_objects: int
    ) -> None:
        self.resource = reflector.resource
        self._client = client
        self._clock = clock
        self._reflector = reflector
        self._slice_objects = slice_objects
        self._form = self._current_form()

    def _current_form(self) -> tuple[str, int, dict[str, str]]:
        return self._reflector.path, self._reflector.relist_count, self._reflector.selector

    def check_unchanged(self) -> None:
        """Raises ReadChangedError."""
        if self._form != self._current_form():
            raise ReadChangedError(f"the watch of {self.resource.label} changed")

    async def slices(self) -> AsyncIterator[ReadSlice]:
        """All objects, ``slice_objects`` at a time, with a pause after each slice.

        A list that takes longer than the server keeps its version (410) begins again, with larger
        pages and shorter pauses; consumers then get objects again.
        """
        pages = 1
        while True:
            try:
                async for part in self._slices(pages):
                    yield part
            except ApiError as error:
                if not error.expired or pages >= _MAX_PAGE:
                    raise
                pages *= _MAX_PAGE
            else:
                return

    async def _slices(self, pages: int) -> AsyncIterator[ReadSlice]:
        params = self._reflector.selector | {"limit": str(self._slice_objects * pages)}
        while True:
            page = await self._page(self._reflector.path, params)
            for begin in range(0, max(1, len(page.objects)), self._slice_objects):
                yield self._decoded(page, begin)
                await self._clock.sleep(PAUSE_S / pages)
                self.check_unchanged()
            if not page.continue_token:
                return
            params["continue"] = page.continue_token

    async def one(self, identity: Object) -> ReadSlice:
        """The object of that namespace and name as a list of one or none."""
        fields = f"metadata.name={identity.name}"
        if selected := self._reflector.selector.get("fieldSelector"):
            fields = f"{selected},{fields}"
        path, namespace = self._reflector.path, identity.namespace
        if namespace:
            root, _, plural = path.rpartition("/")
            path = f"{root}/namespaces/{namespace}/{plural}"
        return self._decoded(await self._page(path, {"fieldSelector": fields}), 0)

    async def _page(self, path: str, params: dict[str, str]) -> RawPage:
        body = await self._client.request("GET", path, params=params)
        self.check_unchanged()
        return self._reflector.decoder.page(body)

    def _decoded(self, page: RawPage, begin: int) -> ReadSlice:
        objects: list[ReadObject] = []
        unreadable: set[str] = set()
        for raw in page.objects[begin : begin + self._slice_objects]:
            decoded = self._reflector.decoder.objects((raw,))
            unreadable |= decoded.unreadable
            version = _number(resource_version(raw))
            objects += [ReadObject(item, version) for item in decoded.objects]
        version = _number(page.resource_version)
        return ReadSlice(tuple(objects), frozenset(unreadable), version)


def _number(version: str) -> int:
    if not version.isdecimal():
        raise MalformedResponseError(f"resourceVersion {version!r} is not a number")
    return int(version)
