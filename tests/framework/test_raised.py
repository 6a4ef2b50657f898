"""The text of an exception names the line of the plugin, not of the runtime or a library."""

from __future__ import annotations

import json

from asched.framework.runtime.observation import OBSERVATION, describe_raised


def _inner() -> None:
    raise KeyError("x")


def _in_library() -> None:
    json.loads("{")


def _caught(function: object) -> BaseException:
    try:
        assert callable(function)
        function()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError


def test_innermost_line_of_the_package() -> None:
    line = _inner.__code__.co_firstlineno + 1
    text = describe_raised("P", "Filter", _caught(_inner))
    assert text == f"KeyError: 'x' (framework/test_raised.py:{line})"


def test_line_that_called_a_library() -> None:
    line = _in_library.__code__.co_firstlineno + 1
    text = describe_raised("P", "Filter", _caught(_in_library))
    assert text.startswith("JSONDecodeError: ")
    assert text.endswith(f"(framework/test_raised.py:{line})")


def test_without_traceback_there_is_no_line() -> None:
    assert describe_raised("P", "Filter", ValueError("v")) == "ValueError: v"


def test_observer_receives_the_exception() -> None:
    seen: list[tuple[str, str, BaseException]] = []
    OBSERVATION.failed = lambda *found: seen.append(found)
    try:
        error = _caught(_inner)
        describe_raised("P", "Filter", error)
    finally:
        OBSERVATION.failed = None
    assert seen == [("P", "Filter", error)]
