"""docs/reference/metrics.md lists the metrics of a daemon."""

from __future__ import annotations

from tests.docs.metrics_page import BEGIN, END, PAGE, described, table


def test_tables_list_all_metrics_of_a_daemon() -> None:
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table().strip(), "run python -m tests.docs.metrics_page"


def test_help_texts_of_own_metrics_are_sentences() -> None:
    """Texts copied from kube-scheduler, client-go and kube-batch stay as they are there."""
    own = [m for m in described().values() if m.name.startswith("asched_")]
    assert [m.name for m in own if not m.text.endswith(".")] == []
