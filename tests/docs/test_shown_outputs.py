"""Outputs in how-to pages, after lines that begin with ``$ asched``, are those of the commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.ui.serving import invoke

ROOT: Final = Path(__file__).parents[2]
_COMMAND: Final = re.compile(r"^    \$ asched (.*)\n((?:(?!    \$)(?:    .*)?\n)*)", re.M)
_CUT: Final = "[...]"


def words(text: str) -> list[list[str]]:
    """The words of each line that has letters, so that widths of columns do not count."""
    return [line.split() for line in text.splitlines() if re.search(r"\w", line)]


@pytest.mark.parametrize(
    ("page", "journal", "shorter"),
    [
        ("costs.md", "s.db", []),
        # The first hours suffice for an estimate at noon of the first day.
        ("fit.md", "queueing.db", ["--until", "13h"]),
    ],
)
def test_output_is_on_the_page(
    page: str, journal: str, shorter: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = (ROOT / "docs" / "how-to" / page).read_text()
    (first, _), (question, shown), *_ = [(m[1], m[2]) for m in _COMMAND.finditer(text)]
    for line, more in ((first, shorter), (question, [])):
        place = {journal: str(tmp_path / journal)}
        arguments = [
            str(ROOT / word) if word.startswith("docs/") else place.get(word, word)
            for word in shlex.split(line)
        ]
        code, out, err = invoke(*arguments, *more)
        assert (code in (0, 1), err) == (True, "")
    printed = words(out)
    assert words(shown)
    for line in words(shown):
        *kept, last = line
        begins = [each[: len(kept)] for each in printed] if last == _CUT else printed
        assert (kept if last == _CUT else line) in begins, out
