"""Readable differences between a session's result and the recording."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from tests.conformance.batch_documents import Expected
from tests.conformance.differences import ABSENT

_NOTHING: Final[dict[str, Any]] = {}


def batch_differences(expected: Expected, got: dict[str, Any]) -> list[str]:
    """``path: expected ..., got ...`` for each difference.

    A value that varied between recorded runs differs if no run had it, unless ``expected`` is
    lenient.
    """
    if expected.partial:
        got = {key: value for key, value in got.items() if key in expected.stable}
    return list(_differing("", expected.stable, expected.varies, got, lenient=expected.lenient))


def _differing(path: str, stable: Any, varies: Any, got: Any, *, lenient: bool) -> Iterator[str]:
    if path == "loadError" or path.endswith(".loadError"):
        if not _same_error(stable, got):
            yield f"{path}: expected {stable}, got {got}"
    elif isinstance(varies, dict) and "outcomes" in varies:
        if not lenient and not _is_among(varies["outcomes"], got):
            seen = [outcome.get("value", ABSENT) for outcome in varies["outcomes"]]
            yield f"{path}: expected one of {seen}, got {got}"
    elif isinstance(varies, dict) and "commonPrefix" in varies:
        prefix = varies["commonPrefix"]
        if got == ABSENT or got[: len(prefix)] != prefix:
            yield f"{path}: expected to begin with {prefix}, got {got}"
    elif isinstance(stable, dict) or (stable == ABSENT and varies):
        yield from _differing_fields(path, stable, varies, got, lenient=lenient)
    elif not _same(stable, got):
        yield f"{path}: expected {stable}, got {got}"


def _differing_fields(
    path: str, stable: Any, varies: Any, got: Any, *, lenient: bool
) -> Iterator[str]:
    fixed = {} if stable == ABSENT else stable
    changing = varies or {}
    if got == ABSENT:
        got = {}
    elif not isinstance(got, dict):
        yield f"{path}: expected an object, got {got}"
        return
    for key in dict.fromkeys([*fixed, *changing, *got]):
        inner = f"{path}.{key}" if path else str(key)
        yield from _differing(
            inner,
            fixed.get(key, ABSENT),
            changing.get(key, _NOTHING),
            got.get(key, ABSENT),
            lenient=lenient,
        )


def _same_error(expected: Any, got: Any) -> bool:
    """YAML error messages come from the library."""
    if isinstance(expected, str) and expected.startswith("yaml:"):
        return isinstance(got, str) and got.startswith("yaml:")
    return bool(expected == got)


def _is_among(outcomes: list[dict[str, Any]], got: Any) -> bool:
    return any(_same(outcome.get("value", ABSENT), got) for outcome in outcomes)


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-8) or (
            abs(expected - got) <= 0.0051 and max(abs(expected), abs(got)) > 1
        )
    if isinstance(expected, dict) and isinstance(got, dict):
        keys = expected.keys() | got.keys()
        return all(_same(expected.get(key, ABSENT), got.get(key, ABSENT)) for key in keys)
    # A scalar resource with amount 0 is optional, like an empty list or object.
    if (expected == ABSENT) != (got == ABSENT):
        present = got if expected == ABSENT else expected
        return present in ({}, [], 0)
    return bool(expected == got)
