"""Objects of any shape: mutated examples as bytes, which may be invalid JSON."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import strategies as st

DEEP = b'{"a":[' * 1_000 + b"1" + b"]}" * 1_000
_RAW = {
    "@deep@": DEEP,
    "@not utf-8@": b'"\xff\xfe"',
    "@infinite@": b"1e999",
    "@digits@": b"9" * 5_000,
    "@surrogate@": b'"\\ud800"',
    "@syntax@": b"[}",
}
"""Texts that no encoder writes, by the string that represents them."""

LEAVES = st.one_of(
    st.sampled_from([*_RAW]),
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70).filter(lambda n: -(2**63) <= n < 2**64),
    st.sampled_from([2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**64 - 1]),
    st.sampled_from([0.5, -0.0, 1e308, 5e-324]),
    st.sampled_from(
        [
            "", "pod", "n1", "zone", "default-scheduler", "kube-batch", "Exists", "In", "Gt",
            "9223372036854775808", "1e400", "-1", "100%", "-5Gi", "x" * 10_000, "\x00",
            "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
            "9999-12-31T23:59:59.999999999Z", "ScheduleAnyway", "Always", "uid-good-1",
        ]
    ),
    st.text(max_size=20),
)  # fmt: skip
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += _places(inner, (*path, key))[1:]
    return found


def _parent(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def encoded(value: Any) -> bytes:
    """JSON, with the texts that no encoder writes in place."""
    raw = msgspec.json.encode(value)
    for name, text in _RAW.items():
        raw = raw.replace(f'"{name}"'.encode(), text)
    return raw


@st.composite
def mutated(draw: st.DrawFn, example: dict[str, Any]) -> bytes:
    """The example with up to four parts replaced, removed or added, or something else."""
    if draw(st.integers(0, 19)) == 0:
        return encoded(draw(ANY_JSON))
    value = copy.deepcopy(example)
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(_places(value)))
        parent, key = _parent(value, path), path[-1]
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "repeat"])):
            case "replace":
                parent[key] = draw(ANY_JSON)
            case "remove":
                del parent[key]
            case "repeat" if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[key]))
            case _ if isinstance(parent, dict):
                parent[draw(st.text(max_size=5))] = draw(ANY_JSON)
        if not value:
            break
    return encoded(value)
