"""Readable differences between an answer and the recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.model.requests import is_extended_resource

ABSENT = "(absent)"

_EMPTY: tuple[Any, ...] = ({}, [], None)


def differences(pod: Pod, expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """``path: expected ..., got ...`` for each value that differs, at any depth.

    An empty object or list and an absent one are the same. The reasons of one status count as a
    set where the pod asks for several extended or hugepages resources.
    """
    any_order = _asks_for_several(pod)
    if "messages" in expected:
        # Any of them is right.
        texts = {**expected}
        listed = texts.pop("messages")
        texts["message"] = got.get("message") if got.get("message") in listed else listed
        expected = texts
    return list(_differing("", expected, got, any_order=any_order))


def plain_differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """:func:`differences` of answers that are not about a pod."""
    return list(_differing("", dict(expected), dict(got), any_order=False))


def _asks_for_several(pod: Pod) -> bool:
    scalar = [
        r for r in PodInfo(pod).shape.requests if is_extended_resource(r) or "hugepages-" in r
    ]
    return len(scalar) > 1


def _differing(path: str, expected: Any, got: Any, *, any_order: bool) -> Iterator[str]:
    if (expected == ABSENT and got in _EMPTY) or (got == ABSENT and expected in _EMPTY):
        return
    # Expand a missing object, so that each of its values has a line.
    if isinstance(expected, dict) and (isinstance(got, dict) or got == ABSENT):
        got = {} if got == ABSENT else got
    elif isinstance(got, dict) and expected == ABSENT:
        expected = {}
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in [*expected, *(key for key in got if key not in expected)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differing(
                inner, expected.get(key, ABSENT), got.get(key, ABSENT), any_order=any_order
            )
    elif not _same(expected, got, any_order=any_order):
        yield f"{path}: expected {expected}, got {got}"


def _same(expected: Any, got: Any, *, any_order: bool) -> bool:
    if any_order and isinstance(expected, list) and isinstance(got, list):
        return bool(_sorted_reasons(expected) == _sorted_reasons(got))
    return bool(expected == got)


def _sorted_reasons(listed: list[Any]) -> list[Any]:
    """A status with sorted reasons; other values unchanged."""
    is_status = any(isinstance(entry, list) for entry in listed)
    if not is_status:
        return listed
    return [sorted(entry) if isinstance(entry, list) else entry for entry in listed]
