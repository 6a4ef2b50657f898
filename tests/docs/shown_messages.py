"""Single messages that pages show: the tests that produce them compare them with the page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"


def is_shown(page: str, message: str) -> bool:
    """Whether the page, such as ``how-to/gang.md``, has the message as an indented line."""
    lines = (DOCS / page).read_text().splitlines()
    return any(line.startswith("    ") and line.strip() == message for line in lines)
