"""Regular expressions: RE2, whose syntax Go shares and whose time is linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

from asched.cel.errors import SubexpressionError

# RE2 matches one byte with \C; Go has no such thing.
_UNSUPPORTED = re.compile(r"(?<!\\)(?:\\\\)*\\C")


class Pattern(Protocol):
    """A compiled regular expression."""

    def search(self, text: str) -> bool:
        """Whether the text contains a match."""

    def find_all(self, text: str) -> Iterator[str]:
        """Matches from the left that do not overlap."""


class _Re2Pattern:
    def __init__(self, pattern: str) -> None:
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise SubexpressionError(f"error parsing regexp: {text}") from None

    def search(self, text: str) -> bool:
        return self._compiled.search(text) is not None

    def find_all(self, text: str) -> Iterator[str]:
        previous_end = -1
        for found in self._compiled.finditer(text):
            start, end = found.span()
            # Go ignores an empty match right after a match.
            if start != end or start != previous_end:
                yield found.group()
                previous_end = end


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> Pattern:
    """The compiled pattern. Raises SubexpressionError."""
    if _UNSUPPORTED.search(pattern) is not None:
        raise SubexpressionError("error parsing regexp: invalid escape sequence: `\\C`")
    return _Re2Pattern(pattern)
