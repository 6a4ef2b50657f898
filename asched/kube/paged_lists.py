"""Fetches the lists of one resource in pages of a suitable size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

import anyio
import anyio.lowlevel
import msgspec

from asched.kube.client import ApiClient
from asched.kube.decoding import DecodedObjects, MalformedResponseError, ObjectDecoder, RawPage
from asched.kube.errors import ApiError, NoResponseError, ResponseTooLargeError
from asched.state.seen_versions import SeenVersions

PAGE_BYTES = 4 * 1024 * 1024
"""Intended size of a page of a list."""
DECODED_AT_ONCE_BYTES = 1024 * 1024
"""Size of the objects that are decoded before other tasks run."""


class PageSize:
    """The ``limit`` of the next page of a list.

    Pages have a few MiB, so that none exceeds the limit for a response and none occupies the event
    loop for long, whatever the size of an object.
    """

    def __init__(self, largest: int) -> None:
        self.limit = largest
        self._largest = largest

    def received(self, size_bytes: int, objects: int) -> None:
        """A page with this content arrived."""
        if objects and size_bytes > 0:
            fitting = PAGE_BYTES * objects // size_bytes
            self.limit = max(1, min(fitting, 2 * self.limit, self._largest))

    def halve(self) -> bool:
        """A page was too large. Returns False if it had one object."""
        smaller = self.limit > 1
        self.limit = max(1, self.limit // 2)
        return smaller


class FetchedPart(NamedTuple):
    """Some pages of a list."""

    found: DecodedObjects
    resource_version: str
    begins: bool
    """Whether it is the first part. A list begins again if its continue token expired."""
    ends: bool


class _PageRequest:
    """Requests pages of a list. A page can be requested while the one before it is decoded."""

    def __init__(self, client: ApiClient, path: str) -> None:
        self._client = client
        self._path = path
        self._next: asyncio.Task[bytes] | None = None

    def begin(self, params: dict[str, str]) -> None:
        """Request the next page."""
        request = self._client.request("GET", self._path, params=dict(params))
        self._next = asyncio.get_running_loop().create_task(request)

    async def page(self, params: dict[str, str]) -> bytes:
        """The page that was requested last, or else that of ``params``. Raises as a request."""
        if self._next is None:
            self.begin(params)
        assert self._next is not None
        requested, self._next = self._next, None
        try:
            return await requested
        finally:
            requested.cancel()

    async def end(self) -> None:
        """Cancel a request in progress."""
        if self._next is not None:
            self._next.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._next])


class PagedLists:
    """Lists of one resource. Remembers the size of pages from one list to the next."""

    def __init__(
        self,
        client: ApiClient,
        decoder: ObjectDecoder,
        largest_page: int,
        part_objects: int | None = None,
    ) -> None:
        """``part_objects``: least number of objects in a part but the last; None for one part."""
        self._client = client
        self._decoder = decoder
        self._pages = PageSize(largest_page)
        self._part_objects = part_objects

    async def fetch(
        self, path: str, selector: dict[str, str], seen: SeenVersions | None = None
    ) -> AsyncGenerator[FetchedPart, None]:
        """All objects of the collection at ``path`` that the selector matches, part by part.
        Those that were ``seen`` in their present version are not decoded.

        Raises ApiError, NoResponseError and MalformedResponseError.
        """
        request = _PageRequest(self._client, path)
        try:
            async for part in self._parts(request, selector, seen):
                yield part
        finally:
            await request.end()

    async def _parts(
        self, request: _PageRequest, selector: dict[str, str], seen: SeenVersions | None
    ) -> AsyncGenerator[FetchedPart, None]:
        params = self._first_page(selector)
        found = DecodedObjects.none()
        expired, begins = 0, True
        while True:
            try:
                body = await request.page(params)
            except ResponseTooLargeError:
                if not self._pages.halve():
                    raise
                params["limit"] = str(self._pages.limit)
                continue
            except NoResponseError:
                # A page may also be too large for the time limit of a request.
                self._pages.halve()
                raise
            except ApiError as error:
                if not (error.expired and "continue" in params):
                    raise
                # The continue token expired. Retry in pages once, then without a limit.
                expired += 1
                found, begins = DecodedObjects.none(), True
                params = self._first_page(selector) if expired == 1 else dict(selector)
                continue
            page = self._decoder.page(body)
            self._pages.received(len(body), len(page.objects))
            if page.continue_token:
                params["continue"] = page.continue_token
                if "limit" in params:
                    params["limit"] = str(self._pages.limit)
                request.begin(params)
            await self._decode(page, found, seen)
            if not page.continue_token:
                break
            if self._part_objects is not None and found.total >= self._part_objects:
                yield FetchedPart(found, page.resource_version, begins, ends=False)
                found, begins = DecodedObjects.none(), False
        if not page.resource_version:
            raise MalformedResponseError("list without a resourceVersion")
        yield FetchedPart(found, page.resource_version, begins, ends=True)

    def _first_page(self, selector: dict[str, str]) -> dict[str, str]:
        return selector | {"limit": str(self._pages.limit)}

    async def _decode(
        self, page: RawPage, found: DecodedObjects, seen: SeenVersions | None
    ) -> None:
        """Add the objects of a page. Other tasks run between parts of a large one."""
        part: list[msgspec.Raw] = []
        part_bytes = 0
        for raw in page.objects:
            part.append(raw)
            part_bytes += len(memoryview(raw))
            if part_bytes >= DECODED_AT_ONCE_BYTES:
                found.extend(self._decoder.objects(part, seen, page.resource_version))
                part.clear()
                part_bytes = 0
                await anyio.lowlevel.checkpoint()
        found.extend(self._decoder.objects(part, seen, page.resource_version))
