"""What expressions see of a device."""

from __future__ import annotations

import pytest

from asched.cel import DeviceView, EvaluationError, Version, compile_selector
from tests.cel.devices import GPU, matches

ATTRIBUTES = 'device.attributes["gpu.example.com"]'
CAPACITY = 'device.capacity["gpu.example.com"]'


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.example.com" && !device.allowMultipleAllocations',
        f'{ATTRIBUTES}.model == "a100" && {ATTRIBUTES}["index"] == 3 && {ATTRIBUTES}.ecc',
        f'{ATTRIBUTES}.driverVersion.isGreaterThan(semver("2.0.9"))',
        f'{CAPACITY}.memory == quantity("40960Mi") && {CAPACITY}.cores.asInteger() == 108',
        'device.attributes["other.example.com"].name == "Foo"',
        'device.attributes[device.driver].model == "a100"',
        # A domain without attributes is an empty map, but is no key.
        'device.attributes["nosuch"] == {} && !("nosuch" in device.attributes)',
        'device.attributes[?"nosuch"].hasValue() && has(device.attributes.nosuch)',
        'device.attributes.all(domain, domain.endsWith(".example.com"))',
        "device.attributes.size() == 2 && device.capacity.size() == 1",
        f"{ATTRIBUTES}.exists(id, id == 'ecc') && {ATTRIBUTES}.map(id, id).size() == 4",
        f'{ATTRIBUTES}.index == 3.0 && {ATTRIBUTES}.index < 3.5 && {ATTRIBUTES}.index != "3"',
        f'{ATTRIBUTES}.driverVersion != "2.1.0"',
        f"{ATTRIBUTES}.?nosuch.orValue(optional.of(true))",
        f"{ATTRIBUTES}.model.includes({ATTRIBUTES}.model) && [1, 2].includes(2u)",
        f"!{ATTRIBUTES}.model.includes(1) && !lists.range(48).includes(48)",
        f"type({ATTRIBUTES}.index) == int && type({ATTRIBUTES}.model) == string",
    ],
)
def test_match(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (f"{ATTRIBUTES}.nosuch == 1", "no such key: nosuch"),
        ('device.attributes["nosuch"].x == 1', "no such key: x"),
        (f'{ATTRIBUTES}.driverVersion == "2.1.0"', "no such overload"),
        (f"{CAPACITY}.share.asInteger() == 1", "cannot convert value to integer"),
        (f"{ATTRIBUTES}.model + 1 == 2", "no such overload"),
        (f"{ATTRIBUTES}.driverVersion < {ATTRIBUTES}.driverVersion", "no such overload: _<_"),
        (
            f"{ATTRIBUTES}.index",
            (
                "CEL result of type int could not be converted to bool: unsupported type conversion"
                " from 'int' to bool"
            ),
        ),
        (
            f"{ATTRIBUTES}.model",
            (
                "CEL result of type string could not be converted to bool: unsupported native"
                " conversion from string to 'bool'"
            ),
        ),
        (
            f"{ATTRIBUTES}.?nosuch.orValue(optional.none())",
            (
                "CEL result of type optional_type could not be converted to bool:"
                " optional.none() dereference"
            ),
        ),
        (
            f"{ATTRIBUTES}.?nosuch.orValue([1])",
            (
                "CEL result of type list could not be converted to bool: type conversion error"
                " from list to 'bool'"
            ),
        ),
        (
            f"{ATTRIBUTES}.?nosuch.orValue(int)",
            (
                "CEL result of type type could not be converted to bool: type conversion not"
                " supported for 'type'"
            ),
        ),
    ],
)
def test_run_time_errors(expression: str, error: str) -> None:
    with pytest.raises(EvaluationError) as raised:
        matches(expression)
    assert str(raised.value) == error


def test_invalid_capacity_is_named() -> None:
    device = DeviceView("d", {}, {"memory": "x"}, allow_multiple_allocations=False)
    with pytest.raises(EvaluationError, match="capacity memory: quantities must match"):
        matches("true", device)


def test_devices_are_compared_by_what_they_are() -> None:
    one = DeviceView("d", {"a": 1}, {}, allow_multiple_allocations=True)
    other = DeviceView("d", {"a": 1}, {}, allow_multiple_allocations=True)
    assert matches('device.attributes["d"].a == 1 && device.allowMultipleAllocations', one)
    assert one == other


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a_b", "a.b.c"]
)
def test_invalid_version(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Version.parse(text)


def test_estimated_cost_depends_on_limits_of_the_api() -> None:
    assert compile_selector(f'{ATTRIBUTES}.model == "a100"').estimated_cost == 5
    nested = "".join(f"{ATTRIBUTES}.exists({name}, " for name in "abcd") + "a != d" + ")" * 4
    assert compile_selector(nested).estimated_cost > 1_000_000
    assert compile_selector(f"{ATTRIBUTES}.model.includes(1)").estimated_cost == 52
    # cel-go takes the sizes of the values for those of the keys.
    assert compile_selector(f"{CAPACITY}.exists(k, v, k == 'a')").estimated_cost == 164
    assert compile_selector(f"{ATTRIBUTES}.exists(k, v, k == k)").estimated_cost == 420
    assert compile_selector(f"{ATTRIBUTES}.exists(k, k == k)").estimated_cost == 324
    assert matches(nested, GPU)
