"""Recorded watches, decoded like live ones.

A tape is gzipped JSON lines: ``{"t": seconds, "resource": plural, "type": ..., "object": ...}``.
``type`` is LISTED (the object is a list) or the type of a watch event.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from asched.core.inputs import Change
from asched.kube.decoding import MalformedResponseError, ObjectDecoder, WatchEvent, WatchEventType
from asched.model.nesting import decode_any_depth
from asched.model.resources import Resource

LISTED = "LISTED"
LINE_LIMIT_BYTES = 512 * 1024 * 1024
"""Limit for a line, which may hold the list of a whole cluster."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TapeError(Exception):
    """The tape cannot be read; the message is one line for the user."""


class _Line(msgspec.Struct, frozen=True):
    t: float
    resource: str
    type: str
    object: msgspec.Raw


class TapeChange(msgspec.Struct, frozen=True, gc=False):
    """A change and its arrival time in seconds since the start of the tape."""

    at_s: float
    change: Change


class Tape:
    """A recorded tape, decoded line by line; ``decoders`` count skipped objects."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.decoders = {resource: ObjectDecoder(resource) for resource in Resource}

    def __iter__(self) -> Iterator[TapeChange]:
        """All changes in order of arrival. Unknown resources are skipped. Raises TapeError."""
        by_plural = {resource.plural: resource for resource in Resource}
        decoder = msgspec.json.Decoder(_Line)
        unknown: set[str] = set()
        try:
            with gzip.open(self._path) as lines:
                for number, text in enumerate(_lines(lines), start=1):
                    line = decode_any_depth(decoder, text)
                    resource = by_plural.get(line.resource)
                    if resource is None:
                        if line.resource not in unknown:
                            unknown.add(line.resource)
                            log.warning("resource skipped", resource=line.resource, line=number)
                        continue
                    change = self._change(resource, line, number)
                    if change is not None:
                        yield TapeChange(line.t, change)
        except gzip.BadGzipFile:
            raise TapeError(f"{self._path}: not a tape: it is not gzipped") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise TapeError(f"{self._path}: cannot be read: {why}") from None
        except (EOFError, msgspec.DecodeError) as error:
            raise TapeError(f"{self._path}: not a tape: {error}") from None

    def _change(self, resource: Resource, line: _Line, number: int) -> Change | None:
        decoder = self.decoders[resource]
        try:
            if line.type == LISTED:
                return decoder.listed(line.object)
            return decoder.change(WatchEvent(WatchEventType(line.type), line.object))
        except (ValueError, MalformedResponseError) as error:
            raise TapeError(f"{self._path}: line {number}: {error}") from None


def _lines(file: gzip.GzipFile) -> Iterator[bytes]:
    """Raises OSError for a line over the limit."""
    while line := file.readline(LINE_LIMIT_BYTES):
        if len(line) == LINE_LIMIT_BYTES:
            raise OSError(f"a line of more than {LINE_LIMIT_BYTES} bytes")
        yield line
