"""Conditions, files of thresholds, and the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.config.file import ConfigFileError
from asched.gate.side import SideRequest, SideResult
from asched.gate.thresholds import DEFAULTS, read_thresholds, with_requirements
from asched.gate.verdict import Verdict, judged
from asched.journal.chain import Head
from asched.planning.conditions import Condition
from asched.planning.errors import PlanningError

HEADER = "apiVersion: asched.dev/v1\nkind: GateThresholds\n"
REQUEST = SideRequest("j.db", Head(1, 1, "0" * 64), 0, 10**9)

AMOUNTS = st.decimals(0, 1000, places=3).map(str)


@given(
    st.sampled_from(["<=", ">=", "<", ">", "=="]),
    st.none() | AMOUNTS,
    st.none() | AMOUNTS,
    st.none() | AMOUNTS,
    st.floats(-1000, 1000),
)
def test_limits(
    compare: str, factor: str | None, bound: str | None, more: str | None, baseline: float
) -> None:
    text = f"{compare} {factor + ' * ' if factor else ''}{bound or 'baseline'}"
    condition = Condition.parse("x", f"{text} + {more}" if more else text)
    limit = condition.limit({"x": baseline})
    of = baseline if bound is None else float(bound)
    assert limit == float(factor or 1) * of + float(more or 0)
    assert condition.holds(limit, limit) is (compare in ("<=", ">=", "=="))
    assert condition.holds(limit - 1, limit) is (compare in ("<=", "<"))
    assert condition.holds(limit + 1, limit) is (compare in (">=", ">"))
    assert not condition.holds(None, limit)


@pytest.mark.parametrize("text", ["about 3", "<= base", "<= 1.1 baseline", "<= baseline -", ""])
def test_text_that_is_no_condition(text: str) -> None:
    with pytest.raises(PlanningError, match="is not a condition; write"):
        Condition.parse("x", text)


def test_requirements_replace_thresholds_of_the_column() -> None:
    found = with_requirements(DEFAULTS, ["placed >= 3", "attempts < 2 * baseline"])
    texts = {condition.column: condition.text for condition in found}
    assert texts["placed"] == ">= 3"
    assert texts["attempts"] == "< 2 * baseline"
    assert len(found) == len(DEFAULTS) + 1
    with pytest.raises(PlanningError, match='"placed" is not a condition'):
        with_requirements(DEFAULTS, ["placed"])


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"{HEADER}thresholds:\n  placed: '>= baseline'\n  evictions: '<= 4'\n")
    assert [one.text for one in read_thresholds(file)] == [">= baseline", "<= 4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thresholds: {}\n", "t.yaml:1: thresholds: expected at least one"),
        ("thresholds: {placed: lots}\n", 'placed: "lots" is not a condition; write "<= 12"'),
        ("threshold: {}\n", ":3: threshold: unknown field; did you mean thresholds?"),
        ("", "thresholds: required"),
    ],
)
def test_mistakes_are_located(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(HEADER + text)
    with pytest.raises(ConfigFileError) as failed:
        read_thresholds(file)
    assert message in "\n".join(failed.value.lines)


def test_verdict() -> None:
    baseline = SideResult(1, figures={"placed": 10, "p50_wait_s": None})
    thresholds = [Condition.parse("placed", ">= 0.9 * baseline")]
    for placed, verdict in ((9, Verdict.PASS), (8, Verdict.FAIL), (None, Verdict.FAIL)):
        candidate = SideResult(1, figures={"placed": placed})
        report = judged(REQUEST, "new.yaml", (baseline, candidate), thresholds)
        assert report.verdict is verdict
        assert bool(report.reasons) is (verdict is Verdict.FAIL)
    broken = SideResult(1, error="plugin X is not installed")
    report = judged(REQUEST, "venv", (baseline, broken), thresholds)
    assert (report.verdict, report.reasons) == (Verdict.FAIL, ["plugin X is not installed"])
    absent = [Condition.parse("p50_wait_s", "<= baseline")]
    with pytest.raises(PlanningError, match="the baseline has no p50_wait_s"):
        judged(REQUEST, "new.yaml", (baseline, baseline), absent)
    idle = SideResult(1, figures={"placed": 0, "p50_wait_s": None})
    period = "from 1970-01-01T00:00:00Z to 1970-01-01T00:00:01Z"
    with pytest.raises(PlanningError, match=f"no pod gets a node {period}, .* give more --days"):
        judged(REQUEST, "new.yaml", (idle, idle), DEFAULTS)
