"""Merge, JSON and strategic merge patches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.apiserver.errors import StatusError
from asched.apiserver.patches import json_patch, merge_patch, strategic_merge

keys = st.sampled_from(["a", "b", "c/d", "e~f"])
flags: st.SearchStrategy[Any] = st.booleans()
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "y"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)
objects = st.dictionaries(keys, values, max_size=4)


def rfc_7386_merge(target: Any, patch: Any) -> Any:
    """The pseudocode of RFC 7386, section 2, which changes its target."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = rfc_7386_merge(target.get(name), value)
        return target
    return patch


@given(objects, objects)
def test_merge_patch_matches_the_rfc_and_keeps_its_inputs(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    before = copy.deepcopy((target, patch))
    result = merge_patch(target, patch)
    assert (target, patch) == before
    assert result == rfc_7386_merge(copy.deepcopy(target), patch)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def patch_between(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """A simple JSON patch from ``old`` to ``new``."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if _same(old, new) else [{"op": "replace", "path": path, "value": new}]
    operations: list[dict[str, Any]] = []
    for key in old:
        here = f"{path}/{_escaped(key)}"
        if key not in new:
            operations.append({"op": "remove", "path": here})
        else:
            operations += patch_between(old[key], new[key], here)
    operations += [
        {"op": "add", "path": f"{path}/{_escaped(key)}", "value": new[key]}
        for key in new
        if key not in old
    ]
    return operations


def _same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)


@given(objects, objects)
def test_json_patch_between_two_objects(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = copy.deepcopy(old)
    assert json_patch(old, patch_between(old, new)) == new
    assert old == before


@given(st.lists(scalars, max_size=5), st.data())
def test_json_patch_of_lists_matches_python_lists(items: list[Any], data: st.DataObject) -> None:
    expected: list[Any] = list(items)
    operations: list[dict[str, Any]] = []
    for _ in range(data.draw(st.integers(0, 4))):
        if expected and data.draw(flags):
            index = data.draw(st.integers(0, len(expected) - 1))
            del expected[index]
            operations.append({"op": "remove", "path": f"/l/{index}"})
        else:
            index = data.draw(st.integers(0, len(expected)))
            value = data.draw(scalars)
            shown = "-" if index == len(expected) and data.draw(flags) else str(index)
            expected.insert(index, value)
            operations.append({"op": "add", "path": f"/l/{shown}", "value": value})
    assert json_patch({"l": items}, operations) == {"l": expected}


def test_json_patch_copies_moves_and_tests() -> None:
    document = {"a": {"b": [1, 2]}, "c": 3}
    patch = [
        {"op": "test", "path": "/a/b/1", "value": 2},
        {"op": "copy", "from": "/a/b", "path": "/d"},
        {"op": "move", "from": "/c", "path": "/a/b/0"},
    ]
    assert json_patch(document, patch) == {"a": {"b": [3, 1, 2]}, "d": [1, 2]}
    assert document == {"a": {"b": [1, 2]}, "c": 3}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/none", "value": 1},
        {"op": "add", "path": "/none/below", "value": 1},
        {"op": "add", "path": "/l/9", "value": 1},
        {"op": "add", "path": "/l/01", "value": 1},
        {"op": "add", "path": "l", "value": 1},
        {"op": "test", "path": "/one", "value": True},
        {"op": "explode", "path": "/one"},
        {"op": "add", "path": "/one"},
        {"path": "/one"},
    ],
)
def test_json_patch_that_does_not_apply_is_rejected(operation: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as error:
        json_patch({"one": 1, "l": [0]}, [{"op": "add", "path": "/two", "value": 2}, operation])
    assert error.value.code == 422


@pytest.mark.parametrize("patch", [{}, "x", [1], None])
def test_malformed_json_patch_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(StatusError) as error:
        json_patch({}, patch)
    assert error.value.code == 400


POD = {
    "metadata": {"labels": {"a": "1"}, "finalizers": ["f1", "f2"]},
    "spec": {
        "volumes": [{"name": "k1", "kind": "NoSchedule"}, {"name": "k2", "kind": "NoExecute"}]
    },
    "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "old"}]},
}


@pytest.mark.parametrize(
    ("patch", "where", "expected"),
    [
        (
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            ("status", "conditions"),
            [{"type": "Ready", "status": "False", "reason": "old"}],
        ),
        (
            {"status": {"conditions": [{"type": "New", "status": "True"}]}},
            ("status", "conditions"),
            [
                {"type": "New", "status": "True"},
                {"type": "Ready", "status": "True", "reason": "old"},
            ],
        ),
        (
            {"spec": {"volumes": [{"name": "k1", "$patch": "delete"}]}},
            ("spec", "volumes"),
            [{"name": "k2", "kind": "NoExecute"}],
        ),
        (
            {"spec": {"volumes": [{"$patch": "replace"}, {"name": "k3", "kind": "NoSchedule"}]}},
            ("spec", "volumes"),
            [{"name": "k3", "kind": "NoSchedule"}],
        ),
        (
            {
                "spec": {
                    "$setElementOrder/volumes": [{"name": "k2"}, {"name": "k1"}],
                    "volumes": [{"name": "k1", "kind": "NoExecute"}],
                }
            },
            ("spec", "volumes"),
            [{"name": "k2", "kind": "NoExecute"}, {"name": "k1", "kind": "NoExecute"}],
        ),
        ({"spec": {"volumes": None}}, ("spec",), {}),
        (
            {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
            ("metadata", "labels"),
            {"b": "2"},
        ),
        (
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f1"]}},
            ("metadata", "finalizers"),
            ["f2"],
        ),
        ({"metadata": {"finalizers": ["f3"]}}, ("metadata", "finalizers"), ["f1", "f2", "f3"]),
        ({"spec": {"$retainKeys": ["other"], "other": 1}}, ("spec",), {"other": 1}),
    ],
)
def test_strategic_merge(patch: dict[str, Any], where: tuple[str, ...], expected: Any) -> None:
    before = copy.deepcopy(POD)
    result: Any = strategic_merge(POD, patch)
    for part in where:
        result = result[part]
    assert result == expected
    assert before == POD


def test_lists_without_merge_key_are_replaced() -> None:
    node = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    patch = {"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}
    assert strategic_merge(node, patch) == patch


def test_ports_merge_by_the_key_of_their_type() -> None:
    service = {"spec": {"ports": [{"port": 80, "name": "a"}]}}
    assert strategic_merge(service, {"spec": {"ports": [{"port": 80, "name": "b"}]}}) == {
        "spec": {"ports": [{"port": 80, "name": "b"}]}
    }
    pod = {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "name": "a"}]}]}}
    patch = {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 81}]}]}}
    assert strategic_merge(pod, patch)["spec"]["containers"][0]["ports"] == [
        {"containerPort": 81},
        {"containerPort": 80, "name": "a"},
    ]


@pytest.mark.parametrize(
    "patch",
    [{"$patch": "explode"}, {"spec": {"volumes": [{"kind": "x"}]}}],
)
def test_invalid_strategic_patches_are_bad_requests(patch: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as error:
        strategic_merge(POD, patch)
    assert error.value.code == 400


@given(objects, objects)
def test_strategic_patch_without_lists_equals_merge_patch(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert strategic_merge(target, patch) == merge_patch(target, patch)
