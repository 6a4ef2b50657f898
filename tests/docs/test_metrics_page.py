"""docs/metrics.md says what the daemon shows."""

from __future__ import annotations

from tests.docs.metrics_page import BEGIN, END, PAGE, described, table


def test_the_tables_are_those_of_a_daemon() -> None:
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table().strip(), "run python -m tests.docs.metrics_page"


def test_every_metric_is_told_of_in_a_sentence() -> None:
    ours = [m for m in described().values() if not m.name.startswith("python_")]
    assert [m.name for m in ours if not m.text.endswith(".")] == []
