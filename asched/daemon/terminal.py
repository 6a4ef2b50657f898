"""Escapes control characters in text from outside before a terminal sees it.

Names, labels and messages come from pod authors, API servers and plugins. Control characters in
them could clear the screen, hide a line or change the title.
"""

from __future__ import annotations

import re
from typing import Any, Final, TextIO

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"  # direction, other line ends
)


def escape_control(text: str) -> str:
    r"""``text`` with control characters written as in JSON (``\u001b``), which keeps JSON valid."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class EscapingStream:
    """A text stream that escapes control characters; otherwise the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """rich writes its own control characters here; it prints escaped text only."""

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escape_control(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def unescaped(stream: TextIO) -> TextIO:
    """The wrapped stream, for writers that escape foreign text themselves."""
    below: TextIO = getattr(stream, "rich_proxied_file", stream)
    return below
