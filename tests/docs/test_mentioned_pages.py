"""Pages that code, messages and other files name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("asched", "benchmarks", "docs", "helm", "plugins", "systemd", "tests")
SUFFIXES = {".html", ".md", ".py", ".service", ".toml", ".yaml"}
_PAGE = re.compile(r"(?<![/\w])docs/[a-z0-9/_-]+\.(?:md|py|yaml)\b")


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("Makefile", "pyproject.toml", "mkdocs.yml"))
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        yield from (file for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES)


def test_every_named_page_exists() -> None:
    missing = {
        (str(file.relative_to(ROOT)), page)
        for file in files()
        for page in _PAGE.findall(file.read_text(encoding="utf-8", errors="replace"))
        if not (ROOT / page).exists()
    }
    assert not missing
