"""From the bytes of lists and watches to changes. What does not decode is reported and skipped."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import cast

import msgspec
import structlog

from asched.kube.changes import Change, Deleted, Listed, Upserted
from asched.kube.errors import ApiStatus
from asched.model.declared_annotations import DeclaredAnnotations
from asched.model.pod import Pod
from asched.model.resources import AnyObject, DecodeError, WatchedResource, decode

LINE_LIMIT_BYTES = 16 * 1024 * 1024
"""Longest watch line. etcd holds objects of 1.5 MB by default, so this is no object."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class WatchEventType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch, its object not decoded yet."""

    type: WatchEventType
    object: msgspec.Raw


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    continue_token: str | None = msgspec.field(default=None, name="continue")


_NO_META = _Meta()


class _Head(msgspec.Struct, frozen=True):
    """Just an object's identity and version."""

    metadata: _Meta = _NO_META


class _Items(msgspec.Struct, frozen=True):
    metadata: _Meta = _NO_META
    items: list[msgspec.Raw] | None = None


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list."""

    objects: tuple[AnyObject, ...]
    unreadable: frozenset[str]
    resource_version: str
    continue_token: str


class Counts(msgspec.Struct):
    """What one decoder has seen. Only it writes them."""

    events: int = 0
    objects: int = 0
    skipped: int = 0
    """Lines and objects that were left out because they do not decode."""


_event_decoder = msgspec.json.Decoder(WatchEvent)
_head_decoder = msgspec.json.Decoder(_Head)
_items_decoder = msgspec.json.Decoder(_Items)
_status_decoder = msgspec.json.Decoder(ApiStatus)
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MalformedAnswerError(ValueError):
    """A list that is not JSON, or a watch line that is no event."""


class LineSplitter:
    """Cuts a stream of chunks into lines, each byte copied at most twice however long a line is."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self.overlong = 0
        """Lines that were longer than the limit and left out."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes, without their newlines and without empty ones."""
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        if not rest:
            return []
        lines = [self._release(), *rest[:-1]]
        self._hold(rest[-1])
        return [line for line in lines if line]

    def _hold(self, part: bytes) -> None:
        self._held_bytes += len(part)
        if self._held_bytes <= self._limit_bytes:
            self._parts.append(part)
        else:
            self._parts.clear()

    def _release(self) -> bytes:
        line = b"".join(self._parts)
        if self._held_bytes > self._limit_bytes:
            self.overlong += 1
        self._parts.clear()
        self._held_bytes = 0
        return line


def parse_event(line: bytes) -> WatchEvent:
    """Raises MalformedAnswerError."""
    try:
        return _event_decoder.decode(line)
    except _MALFORMED as error:
        raise MalformedAnswerError(str(error)) from None


def parse_status(raw: bytes | msgspec.Raw) -> ApiStatus:
    """The object of an ERROR event; what is no Status says so in its message."""
    try:
        return _status_decoder.decode(raw)
    except _MALFORMED as error:
        return ApiStatus(message=f"not a Status: {error}")


def resource_version(raw: bytes | msgspec.Raw) -> str:
    """``metadata.resourceVersion``, empty where there is none to read."""
    return _head(raw).metadata.resource_version or ""


def _head(raw: bytes | msgspec.Raw) -> _Head:
    try:
        return _head_decoder.decode(raw)
    except _MALFORMED:
        return _Head()


class ObjectDecoder:
    """Decodes what the API sends of one resource."""

    def __init__(self, resource: WatchedResource, annotations: Collection[str] = ()) -> None:
        """``annotations``: those of pods that plugins read."""
        self.resource = resource
        self._declared: DeclaredAnnotations | None = None
        self.declare(annotations)
        self.counts = Counts()
        self._reported: dict[str, str] = {}

    def declare(self, annotations: Collection[str]) -> None:
        """Keep these annotations of pods from here on."""
        self._declared = DeclaredAnnotations(annotations) if annotations else None

    def page(self, body: bytes | msgspec.Raw) -> ListPage:
        """Decode a list. Raises MalformedAnswerError where it is none."""
        try:
            listed = _items_decoder.decode(body)
        except _MALFORMED as error:
            raise MalformedAnswerError(f"list of {self.resource.plural}: {error}") from None
        objects: list[AnyObject] = []
        unreadable: set[str] = set()
        for raw in listed.items or ():
            try:
                objects.append(self._decode(raw))
            except DecodeError as error:
                unreadable.add(self._skip(raw, error))
        self.counts.objects += len(objects)
        return ListPage(
            objects=tuple(objects),
            unreadable=frozenset(unreadable - {""}),
            resource_version=listed.metadata.resource_version or "",
            continue_token=listed.metadata.continue_token or "",
        )

    def listed(self, body: bytes | msgspec.Raw) -> Listed:
        """Decode a list that came in one page."""
        page = self.page(body)
        return Listed(self.resource, page.objects, page.unreadable)

    def change(self, event: WatchEvent) -> Change | None:
        """The change that an event tells of; None if it is none, or does not decode."""
        self.counts.events += 1
        if event.type is WatchEventType.BOOKMARK or event.type is WatchEventType.ERROR:
            return None
        try:
            decoded = self._decode(event.object)
        except DecodeError as error:
            key = self._skip(event.object, error)
            if event.type is WatchEventType.DELETED and key:
                self._reported.pop(key, None)
                return Deleted(self.resource, self._bare(event.object))
            return None
        if self._reported:
            self._reported.pop(decoded.key, None)
        if event.type is WatchEventType.DELETED:
            return Deleted(self.resource, decoded)
        return Upserted(self.resource, decoded)

    def skip_line(self, reason: str) -> None:
        """Report a watch line that is no event at all."""
        self.counts.skipped += 1
        log.warning("watch line skipped", resource=self.resource.plural, error=reason)

    def _decode(self, raw: bytes | msgspec.Raw) -> AnyObject:
        # A resource's type is one of those in AnyObject; the checker cannot see it.
        decoded = decode(self.resource, raw)
        if self._declared is not None and isinstance(decoded, Pod):
            decoded = self._declared.kept(decoded, raw)
        return cast(AnyObject, decoded)

    def _bare(self, raw: bytes | msgspec.Raw) -> AnyObject:
        """Of a deletion the identity suffices: an object must not outlive a field we cannot read."""
        meta = _head(raw).metadata
        names = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        return self._decode(msgspec.json.encode({"metadata": names}))

    def _skip(self, raw: bytes | msgspec.Raw, error: DecodeError) -> str:
        """Count and report an object that does not decode, once a version. Returns its key."""
        self.counts.skipped += 1
        meta = _head(raw).metadata
        key = f"{meta.namespace}/{meta.name}" if meta.namespace else (meta.name or "")
        version = meta.resource_version or ""
        if self._reported.get(key) != version or not version:
            self._reported[key] = version
            log.warning(
                "object skipped",
                resource=self.resource.plural,
                key=key,
                resource_version=version,
                error=str(error),
            )
        return key
