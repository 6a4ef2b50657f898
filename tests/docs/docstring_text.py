"""Docstrings as Markdown: references such as ``:class:`Handle``` become code."""

from __future__ import annotations

import re
from typing import Final

_ROLE: Final = re.compile(r":[a-z]+:`~?([^`]+)`")
_MODULES: Final = re.compile(r"^asched\.[a-z_.]+\.(?=[A-Z])")


def as_markdown(docstring: str) -> str:
    """The text with code instead of roles. ``asched.framework.cluster.Handle`` becomes ``Handle``,
    which is the name that plugins import."""
    text = _ROLE.sub(lambda match: f"`{_MODULES.sub('', match[1])}`", docstring)
    return text.replace("``", "`")
