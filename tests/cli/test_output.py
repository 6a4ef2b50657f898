"""Tables and lines fit a terminal, and are rows with tabs in a pipe."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.times import TimeTextError, parse_time_ns
from asched.cli.output import column_widths, print_next, print_table, print_text

TEXT = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=60)
ROWS = st.integers(1, 6).flatmap(
    lambda columns: st.lists(st.lists(TEXT, min_size=columns, max_size=columns), min_size=1)
)


@given(ROWS, st.integers(40, 200))
def test_columns_fit_and_break_words_only_if_they_must(rows: list[list[str]], width: int) -> None:
    heads = [f"C{index}" for index in range(len(rows[0]))]
    widths = column_widths(heads, rows, width)
    gaps = 3 * len(widths) - 1
    assert sum(widths) + gaps <= width
    texts = list(zip(heads, *rows, strict=True))
    longest = [max(map(len, column)) for column in texts]
    assert all(given <= most for given, most in zip(widths, longest, strict=True))
    words = [max((len(w) for text in column for w in text.split()), default=0) for column in texts]
    if sum(longest) + gaps <= width:
        assert widths == longest
    elif sum(words) + gaps <= width:
        assert all(given >= word for given, word in zip(widths, words, strict=True))


def test_a_pipe_gets_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("x y", "line\nbreak\tand tab"), (1, "")], title="Title")
    print_next("asched explain p", "why")
    assert capsys.readouterr().out == "Title\nA\tB\nx y\tline break and tab\n1\t\n"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_terminal_is_never_too_narrow(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [(f"node-{i}", "words " * 12, "NodeResourcesFit: Insufficient cpu") for i in range(3)]
    print_table(("NODE", "WORDS", "REJECTED BY"), rows, title="T")
    print_text("  indented " + "word " * 30)
    print_next("asched explain default/web", "each plugin on each node")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "next: asched explain default/web" in " ".join(out.split())
    assert out.count("node-") == 3


def test_wrapped_lines_keep_their_indentation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_text("  one two three four five\nsix")
    assert capsys.readouterr().out == "  one two three four\n    five\nsix\n"


NOW = datetime(2026, 1, 31, tzinfo=UTC)


@given(st.integers(0, 9_000), st.integers(0, 23))
def test_days_are_24_hours(days: int, hours: int) -> None:
    assert parse_time_ns(f"{days}d{hours}h", NOW) == parse_time_ns(f"{days * 24 + hours}h", NOW)
    assert parse_time_ns(f"{days}d", NOW) == parse_time_ns(f"{days * 24}h", NOW)


@pytest.mark.parametrize(
    "text",
    [
        *("", "d", "5", "5dd", "1h5d", "-d", "5d5", "9" * 30 + "d", "５x"),
        *("9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TimeTextError, match=r"is not a time; write .* 5d or 2h30m"):
        parse_time_ns(text, NOW)
