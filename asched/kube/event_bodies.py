"""Bodies of the requests that write Events (``events.k8s.io/v1``)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from asched.kube.group_writer import GroupRef
from asched.kube.pod_writer import PodTarget

NOTE_LIMIT_BYTES = 1024
"""The API server rejects longer notes."""
_CUT = " ..."
NAME_LIMIT = 253


class EventObject(msgspec.Struct, frozen=True, rename="camel"):
    """The object of an Event, or one that it is related to."""

    namespace: str
    name: str
    uid: str
    kind: str = "Pod"
    api_version: str = "v1"


class EventMeta(msgspec.Struct, frozen=True):
    """``metadata`` of a new Event."""

    name: str
    namespace: str


class EventBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A new Event."""

    api_version: str
    kind: str
    metadata: EventMeta
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    regarding: EventObject
    note: str
    type: str
    related: EventObject | None = None


class EventSeries(msgspec.Struct, frozen=True, rename="camel"):
    """How often an Event occurred."""

    count: int
    last_observed_time: str


class SeriesPatch(msgspec.Struct, frozen=True):
    """A merge patch of an Event."""

    series: EventSeries


encode: Callable[[msgspec.Struct], bytes] = msgspec.json.Encoder().encode


def cut_note(note: str) -> str:
    """At most 1024 bytes, cut as in kube-scheduler, but never within a character."""
    encoded = note.encode()
    if len(encoded) <= NOTE_LIMIT_BYTES:
        return note
    kept = encoded[: NOTE_LIMIT_BYTES - len(_CUT)]
    return kept.decode(errors="ignore") + _CUT


def collection_of(event: EventBody) -> str:
    """The path for a new Event."""
    return f"/apis/events.k8s.io/v1/namespaces/{event.metadata.namespace}/events"


def reference_to(thing: PodTarget | GroupRef) -> EventObject:
    if isinstance(thing, GroupRef):
        kind, version = thing.resource.kind, thing.api_version
        return EventObject(thing.namespace, thing.name, thing.uid, kind, version)
    return EventObject(thing.namespace, thing.name, thing.uid)


def micro_time(moment: datetime) -> str:
    """``metav1.MicroTime``."""
    return f"{_seconds_text(int(moment.timestamp()))}.{moment.microsecond:06d}Z"


@lru_cache(maxsize=8)
def _seconds_text(unix_s: int) -> str:
    """Cached: formatting a time takes longer than encoding the rest of an Event."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat()[: -len("+00:00")]
