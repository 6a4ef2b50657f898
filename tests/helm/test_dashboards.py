"""The dashboard and the alerts ask for metrics that the daemon has, by labels that they have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.docs.metrics_page import Described, described
from tests.helm.chart import CHART, ROOT
from tests.helm.promql import Use, parsed

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards" / "asched.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CHART / "alerts" / "asched.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
    *((rule["alert"], rule["expr"]) for rule in RULES),
]
OF_PROMETHEUS = {"job", "instance"}
"""Labels that come from who scrapes."""


def metric_of(use: Use) -> Described:
    """Fails where the daemon shows none of this name."""
    for metric in described().values():
        if use.metric in metric.samples:
            return metric
    pytest.fail(f"the daemon does not show {use.metric}")


@pytest.mark.parametrize(("where", "expression"), QUERIES)
def test_queries_use_existing_metrics(where: str, expression: str) -> None:
    query = parsed(expression)
    labels: set[str] = set()
    for use in query.uses:
        metric = metric_of(use)
        has = {*metric.labels, *OF_PROMETHEUS}
        if use.metric.endswith("_bucket"):
            has.add("le")
        assert use.matchers.keys() <= has, where
        labels |= has
        # A counter or a histogram is looked at by its rate, a gauge as it is.
        counts = metric.type in ("counter", "histogram")
        assert use.is_range is counts or "_over_time(" in expression, where
    assert query.grouped_by <= labels, where


def test_legends_use_available_labels() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            query = parsed(target["expr"])
            if "sum" in target["expr"] or "max" in target["expr"]:
                assert named <= query.grouped_by, panel["title"]
            else:
                assert named <= OF_PROMETHEUS, panel["title"]


def test_panels_do_not_overlap_and_share_data_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_alert_has_summary_and_action() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert f"| {rule['alert']} |" in page
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "nonsense", ["sum(rate(a[5m])", "a)", "5 > 3", "rate(a{b=c}[5m])", "a $ b", 'a{b="c" d}']
)
def test_invalid_queries_are_rejected(nonsense: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|unbalanced"):
        parsed(nonsense)
