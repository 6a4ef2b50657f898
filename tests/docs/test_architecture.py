"""Files named in ARCHITECTURE.md exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`([a-z_]+/[a-z_/]+\.(?:py|md))`")


def test_files_named_in_architecture_exist() -> None:
    named = set(_NAMED.findall((ROOT / "ARCHITECTURE.md").read_text()))
    assert len(named) > 15
    missing = [
        path for path in named if not any((ROOT / d / path).exists() for d in ("", "asched"))
    ]
    assert not missing
