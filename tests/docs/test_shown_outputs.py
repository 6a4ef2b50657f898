"""Outputs in how-to pages, after lines that begin with ``$ asched``, are those of the commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.run_size import sample
from tests.ui.serving import invoke

ROOT: Final = Path(__file__).parents[2]
_COMMAND: Final = re.compile(r"^    \$ asched (.*)\n((?:(?!    \$)(?:    .*)?\n)*)", re.M)
_CUT: Final = "[...]"
_NUMBER: Final = re.compile(r"\d[\d.,]*(?:%|h|m|s)?|^-$")


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


def form(text: str) -> list[list[str]]:
    """As :func:`words`, with one text for all numbers."""
    return [[_NUMBER.sub("N", word) for word in line] for line in words(text)]


def test_calibrations_on_the_page_have_the_present_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer moments, samples and days: those on the page take minutes."""
    monkeypatch.setenv("COLUMNS", "300")
    journal = str(tmp_path / "queueing.db")
    example = str(ROOT / "docs" / "examples" / "queueing.yaml")
    code, _, err = invoke("simulate", example, "--journal", journal, "--until", "6h")
    assert (code, err) == (0, "")
    text = (ROOT / "docs" / "how-to" / "fit.md").read_text()
    shown = [(m[1], m[2]) for m in _COMMAND.finditer(text) if "--calibrate" in m[1]]
    assert len(shown) == 2
    for line, output in shown:
        place = {"queueing.db": journal}
        arguments = [place.get(word, word) for word in shlex.split(line)]
        smaller = ("--samples", "2", "--moments", "3", "--horizon", "20m")
        code, out, err = invoke(*arguments, *smaller)
        assert (code, err) == (0, "")
        assert form(output) == form(out)


@pytest.mark.shared
def test_regrets_on_the_page(
    shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast run computes the first configuration only."""
    monkeypatch.setenv("COLUMNS", "300")
    text = (ROOT / "docs" / "how-to" / "planning.md").read_text()
    ((line, shown),) = [(m[1], m[2]) for m in _COMMAND.finditer(text)]
    for file in (ROOT / "docs" / "examples" / "gpu-nodes").iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    for name in ("openb_node_list_all_node.csv", "openb_pod_list_default.csv"):
        (tmp_path / name).symlink_to(shared_dir / "data" / "openb" / name)
    header, *rows = words(shown)
    sweep, computed = tmp_path / "quality.yaml", sample(rows, len(rows))
    configs = ", ".join(row[0] for row in computed)
    sweep.write_text(re.sub(r"configs: .*", f"configs: [{configs}]", sweep.read_text()))
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke(*shlex.split(line), "--jobs", "1")
    assert (code, err) == (0, "")
    assert words(out) == [header, *computed]
