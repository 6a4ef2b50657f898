"""Decodes lists and watches into changes; undecodable objects are logged and skipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, cast

import msgspec
import structlog

from asched.core.inputs import Change, Deleted, Listed, Upserted
from asched.kube.errors import ApiStatus
from asched.model.listed_pods import ListedPodDecoder
from asched.model.meta import Object
from asched.model.nesting import decode_any_depth
from asched.model.pod import Pod
from asched.model.resources import (
    AnyObject,
    DeclaredAnnotations,
    DecodeError,
    Resource,
    WatchedResource,
    decode,
)
from asched.state.seen_versions import SeenVersions

LINE_LIMIT_BYTES = 16 * 1024 * 1024
"""Longest watch line. etcd's default limit for an object is 1.5 MB."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class WatchEventType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch, with its object undecoded."""

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
    """Only identity and version of an object."""

    metadata: _Meta = _NO_META


class ObjectIdentity(NamedTuple):
    """An object, without what it contains."""

    key: str
    """``namespace/name``, or just the name of a cluster-scoped object."""
    uid: str
    version: int
    """Its resourceVersion; 0 if that is not a number."""


class _Items(msgspec.Struct, frozen=True):
    metadata: _Meta = _NO_META
    items: list[msgspec.Raw] | None = None


class RawPage(msgspec.Struct, frozen=True):
    """One page of a list, with its objects undecoded."""

    objects: tuple[msgspec.Raw, ...]
    resource_version: str
    continue_token: str


class DecodedObjects(NamedTuple):
    """The objects of a list or of a part of it."""

    objects: list[AnyObject]
    unreadable: set[str]
    """Keys of objects that exist but cannot be decoded."""
    versions: list[int]
    """Of the objects, 0 for an unknown one; empty for some resources."""
    unchanged: list[tuple[str, str]]
    """Key and uid of objects that were not decoded, because the state contains that version."""

    @classmethod
    def none(cls) -> DecodedObjects:
        return cls([], set(), [], [])

    @property
    def total(self) -> int:
        """Number of objects in the list."""
        return len(self.objects) + len(self.unchanged)

    def extend(self, others: DecodedObjects) -> None:
        self.objects.extend(others.objects)
        self.unreadable.update(others.unreadable)
        self.versions.extend(others.versions)
        self.unchanged.extend(others.unchanged)


class DecoderCounts(msgspec.Struct):
    """Counters of one decoder."""

    events: int = 0
    skipped: int = 0
    """Lines and objects that could not be decoded."""
    unchanged: int = 0
    """Listed objects that were not decoded."""


_event_decoder = msgspec.json.Decoder(WatchEvent)
_head_decoder = msgspec.json.Decoder(_Head)
_items_decoder = msgspec.json.Decoder(_Items)
_status_decoder = msgspec.json.Decoder(ApiStatus)


class MalformedResponseError(ValueError):
    """A list or a watch line that cannot be parsed."""


class LineSplitter:
    """Splits a stream of chunks into lines, copying each byte at most twice."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self.overlong = 0
        """Number of lines dropped because they exceed the limit."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The non-empty lines that ``chunk`` completes, without newlines."""
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
    """Raises MalformedResponseError."""
    try:
        return decode_any_depth(_event_decoder, line)
    except msgspec.DecodeError as error:
        raise MalformedResponseError(str(error)) from None


def parse_status(raw: bytes | msgspec.Raw) -> ApiStatus:
    """The Status of an ERROR event; for any other object the message says what is wrong."""
    try:
        return decode_any_depth(_status_decoder, raw)
    except msgspec.DecodeError as error:
        return ApiStatus(message=f"not a Status: {error}")


def resource_version(raw: bytes | msgspec.Raw) -> str:
    """``metadata.resourceVersion``, empty if there is none."""
    found = _FIRST_FIELDS.match(raw)
    if found is not None:
        return found[4].decode()
    return _head(raw).metadata.resource_version or ""


# The API server writes the fields of ``metadata`` in this order, before everything that an author
# of an object can choose. A fifth of the time of a decoder, which has to read the whole object.
_FIRST_FIELDS: Final = re.compile(
    rb'\{(?:"kind":"\w+","apiVersion":"[\w./-]+",)?"metadata":\{"name":"([\w.-]+)",'
    rb'(?:"generateName":"[\w.-]*",)?(?:"namespace":"([\w.-]+)",)?"uid":"([\w-]+)",'
    rb'"resourceVersion":"([0-9]{1,18})"',
    re.ASCII,
)


def identity_of(raw: bytes | msgspec.Raw) -> ObjectIdentity:
    """Name, uid and version of an object, empty and 0 if it has none."""
    found = _FIRST_FIELDS.match(raw)
    if found is not None:
        name, namespace, uid, version = found.groups()
        key = f"{namespace.decode()}/{name.decode()}" if namespace else name.decode()
        return ObjectIdentity(key, uid.decode(), int(version))
    meta = _head(raw).metadata
    number = meta.resource_version or ""
    decimal = number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
    return ObjectIdentity(_key_of(meta), meta.uid or "", int(number) if decimal else 0)


def version_of(raw: bytes | msgspec.Raw) -> int:
    """:attr:`ObjectIdentity.version` alone."""
    found = _FIRST_FIELDS.match(raw)
    return identity_of(raw).version if found is None else int(found[4])


_MAX_DIGITS: Final = 18
"""Of a version: it fits 64 bits."""


def _key_of(meta: _Meta) -> str:
    name = meta.name or ""
    return f"{meta.namespace}/{name}" if meta.namespace else name


def _head(raw: bytes | msgspec.Raw) -> _Head:
    try:
        return decode_any_depth(_head_decoder, raw)
    except msgspec.DecodeError:
        return _Head()


class ObjectDecoder:
    """Decodes lists and watch events of one resource."""

    def __init__(self, resource: WatchedResource, annotations: Collection[str] = ()) -> None:
        """``annotations``: names of pod annotations that plugins read."""
        self.resource = resource
        pods = resource is Resource.PODS
        self._decode_changed: Callable[[bytes | msgspec.Raw], Object] = partial(decode, resource)
        self._decode_listed = ListedPodDecoder().decode if pods else self._decode_changed
        # The other resources are served in several versions, or read by structs of plugins.
        self._versioned = isinstance(resource, Resource)
        self._declared: DeclaredAnnotations | None = None
        self.keep_annotations(annotations)
        self.counts = DecoderCounts()
        self._reported: dict[str, str] = {}

    def keep_annotations(self, annotations: Collection[str]) -> None:
        """Keep these annotations of pods that are decoded from now on."""
        self._declared = DeclaredAnnotations(annotations) if annotations else None

    def page(self, body: bytes | msgspec.Raw) -> RawPage:
        """Split a page of a list into its objects. Raises MalformedResponseError."""
        try:
            listed = decode_any_depth(_items_decoder, body)
        except msgspec.DecodeError as error:
            raise MalformedResponseError(f"list of {self.resource.plural}: {error}") from None
        return RawPage(
            objects=tuple(listed.items or ()),
            resource_version=listed.metadata.resource_version or "",
            continue_token=listed.metadata.continue_token or "",
        )

    def objects(
        self, raws: Iterable[msgspec.Raw], seen: SeenVersions | None = None, list_version: str = ""
    ) -> DecodedObjects:
        """Decode the objects of a list of that version, without those that were ``seen``."""
        decoded = DecodedObjects.none()
        number = int(list_version) if list_version.isdecimal() else 0
        kind = self.resource.type
        for raw in raws:
            if seen is not None and self._versioned:
                key, uid, version = identity_of(raw)
                if seen.is_unchanged(kind, key, uid, version, number):
                    decoded.unchanged.append((key, uid))
                    self.counts.unchanged += 1
                    continue
            try:
                decoded.objects.append(self._decode(raw, self._decode_listed))
            except DecodeError as error:
                key = self._skip(raw, error)
                if key:
                    decoded.unreadable.add(key)
            else:
                if self._versioned:
                    decoded.versions.append(version_of(raw) if seen is None else version)
        return decoded

    def listed(self, body: bytes | msgspec.Raw) -> Listed:
        """Decode a list that consists of one page. Raises MalformedResponseError."""
        found = self.objects(self.page(body).objects)
        return Listed(self.resource, tuple(found.objects), frozenset(found.unreadable))

    def change(self, event: WatchEvent) -> Change | None:
        """The change of an event; None for bookmarks, errors and undecodable objects."""
        self.counts.events += 1
        if event.type is WatchEventType.BOOKMARK or event.type is WatchEventType.ERROR:
            return None
        try:
            decoded = self._decode(event.object, self._decode_changed)
        except DecodeError as error:
            key = self._skip(event.object, error)
            if event.type is not WatchEventType.DELETED:
                return None
            self._reported.pop(key, None)
            identity = self._identity(event.object)
            return Deleted(self.resource, identity) if identity is not None else None
        if self._reported:
            self._reported.pop(decoded.key, None)
        if event.type is WatchEventType.DELETED:
            return Deleted(self.resource, decoded)
        version = version_of(event.object) if self._versioned else 0
        return Upserted(self.resource, decoded, version)

    def skip_line(self, reason: str) -> None:
        """Count and log a watch line that is not an event."""
        self.counts.skipped += 1
        log.warning("watch line skipped", resource=self.resource.plural, error=reason)

    def _decode(
        self, raw: bytes | msgspec.Raw, decode_object: Callable[[bytes | msgspec.Raw], Object]
    ) -> AnyObject:
        """Raises DecodeError, whatever is wrong: an object must not affect others of its list."""
        try:
            # Every resource's type is in AnyObject, which mypy cannot infer.
            decoded = decode_object(raw)
            if self._declared is not None and isinstance(decoded, Pod):
                decoded = self._declared.add_to(decoded, raw)
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(f"{type(error).__name__}: {error}") from error
        return cast(AnyObject, decoded)

    def _identity(self, raw: bytes | msgspec.Raw) -> AnyObject | None:
        """The object with only its identity, which suffices for a deletion; None without a name."""
        meta = _head(raw).metadata
        names = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        try:
            return self._decode(msgspec.json.encode({"metadata": names}), self._decode_changed)
        except DecodeError:
            return None

    def _skip(self, raw: bytes | msgspec.Raw, error: DecodeError) -> str:
        """Count an undecodable object and log it once per version. Returns its key."""
        self.counts.skipped += 1
        meta = _head(raw).metadata
        key = _key_of(meta)
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
