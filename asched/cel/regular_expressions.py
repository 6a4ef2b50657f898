"""Regular expressions: RE2, with the syntax of Go and in time that is linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

from asched.cel.errors import SubexpressionError

# RE2 matches one byte with \C; Go has no such thing.
_UNSUPPORTED = re.compile(r"(?<!\\)(?:\\\\)*\\C")


_GO_ERRORS = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


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
            raise SubexpressionError(f"error parsing regexp: {_as_go_says(text)}") from None

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


def _as_go_says(text: str) -> str:
    """The error with Go's words; RE2 has others for the same codes."""
    code, separator, part = text.partition(": ")
    return f"{_GO_ERRORS.get(code, code)}: `{part}`" if separator else _GO_ERRORS.get(code, code)


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> Pattern:
    """The compiled pattern. Raises SubexpressionError."""
    if _UNSUPPORTED.search(pattern) is not None:
        raise SubexpressionError("error parsing regexp: invalid escape sequence: `\\C`")
    return _Re2Pattern(pattern)
