"""How a public name goes away: it warns first.

Within one :data:`~asched.framework.interface.API_VERSION` the contract only grows. A name that got a
better one is kept under the old one, as an entry of a table, until the version after; whoever uses it
is warned with the line that does, and with what to write instead.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Renamed(NamedTuple):
    """What a public name is called now."""

    now: str
    """The new name, as ``module:name``."""
    since: str
    """The release that renamed it."""
    until_api_version: int
    """The version of the contract that no longer has the old name."""


def renamed_names(module: str, renamed: Mapping[str, Renamed]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` (PEP 562) that still knows its old names.

    Getting one warns with a DeprecationWarning that names the new one; any other raises
    AttributeError, as it would without.
    """

    def look_up(name: str) -> Any:
        entry = renamed.get(name)
        if entry is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, _, now = entry.now.partition(":")
        # 2: the line that asked; `from module import name` asks from within importlib, which
        # warnings pass over by themselves.
        warnings.warn(
            f"{module}.{name} is called {where}.{now} since asched {entry.since}; the old name goes"
            f" with api_version {entry.until_api_version}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(where), now)

    return look_up
