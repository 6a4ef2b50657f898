"""Describes an exception of a plugin in one line that names the plugin's file and line."""

from __future__ import annotations

from pathlib import PurePath
from types import FrameType, TracebackType

from asched.framework.runtime.observation import OBSERVATION, to_printable

_PLUGIN_PACKAGES = ("asched.plugins", "asched.batch.plugins", "asched.batch.actions")


def describe_raised(plugin: str, point: str, error: BaseException) -> str:
    """Such as ``KeyError: 'x' (example/plugin.py:12)``. Passes the exception to the observer of
    failures, which has the complete traceback."""
    if OBSERVATION.failed is not None:
        OBSERVATION.failed(plugin, point, error)
    text = f"{type(error).__name__}: {to_printable(error)}"
    place = _place(error.__traceback__)
    return f"{text} ({place})" if place else text


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the package that the runtime called. The line of a library that raised
    within a call of the plugin would not show where to look."""
    called, found = "", ""
    while trace is not None:
        package = _package(trace.tb_frame)
        called = called or package
        if package and package == called:
            file = PurePath(trace.tb_frame.f_code.co_filename)
            found = f"{'/'.join(file.parts[-2:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _package(frame: FrameType) -> str:
    """The package of a plugin's code; empty for the runtime."""
    module = str(frame.f_globals.get("__name__", ""))
    for package in _PLUGIN_PACKAGES:
        if module == package or module.startswith(f"{package}."):
            return package
    top = module.partition(".")[0]
    return "" if top == "asched" else top
