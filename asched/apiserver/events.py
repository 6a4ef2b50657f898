"""core/v1 and events.k8s.io/v1 Events: two views of the same stored objects.

Events are stored as core/v1 shows them; conversion follows pkg/apis/events/v1/conversion.go.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

_TO_CORE = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_FROM_CORE = {core: events for events, core in _TO_CORE.items()}


def _renamed(obj: Object, names: dict[str, str], api_version: str) -> Object:
    renamed = {names.get(key, key): value for key, value in obj.items()}
    renamed["apiVersion"] = api_version
    return renamed


def to_core(event: Object) -> Object:
    """An events.k8s.io/v1 Event as core/v1."""
    return complete_core(_renamed(event, _TO_CORE, "v1"))


def complete_core(event: Object) -> Object:
    """The fields that a core/v1 Event always shows."""
    event = dict(event)
    event.setdefault("involvedObject", {})
    event.setdefault("source", {})
    event.setdefault("firstTimestamp", None)
    event.setdefault("lastTimestamp", None)
    event.setdefault("eventTime", None)
    event.setdefault("reportingComponent", "")
    event.setdefault("reportingInstance", "")
    return event


def to_events(event: Object) -> Object:
    """A core/v1 Event as events.k8s.io/v1."""
    return _renamed(event, _FROM_CORE, "events.k8s.io/v1")
