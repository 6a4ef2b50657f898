"""ARCHITECTURE.md names files; they have to be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`([a-z_]+/[a-z_/]+\.(?:py|md))`")


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(_NAMED.findall((ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 15
    missing = [
        path for path in named if not any((ROOT / d / path).exists() for d in ("", "asched"))
    ]
    assert not missing
