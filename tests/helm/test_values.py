"""What the chart refuses, and that every value is explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import helm_python as helm
import pytest

from tests.helm.chart import CHART, Values, rendered, templates


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"imag": {}}, "imag"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": "1"}, "replicas"),
        ({"scheduler": {"kind": "KubeSchedulerConfiguration"}}, "scheduler"),
        ({"settings": {"logs": {}}}, "logs"),
        ({"batch": {"compatibility": "volcano"}}, "compatibility"),
        ({"batch": {"period": "often"}}, "period"),
        ({"journal": {"url": "memory://"}}, "url"),
        ({"journal": {"volume": {"accessMode": "ReadWriteMany"}}}, "accessMode"),
        ({"journal": {"volume": {"size": "large"}}}, "size"),
        ({"journal": {"postgres": {"secret": {"name": "Not A Name"}}}}, "name"),
        ({"journal": {"signing": {"key": "x"}}}, "key"),
        ({"journal": {"signing": {"anchorInterval": "often"}}}, "anchorInterval"),
        ({"health": {"port": 70_000}}, "port"),
        ({"crds": ["scheduling.example.com"]}, "crds"),
        ({"terminationGracePeriodSeconds": 10}, "terminationGracePeriodSeconds"),
        ({"networkPolicy": {"apiServerPorts": []}}, "apiServerPorts"),
        ({"resources": {"limit": {}}}, "limit"),
        ({"podLabels": {"a": 1}}, "podLabels"),
    ],
)
def test_schema_rejects(values: Values, message: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=message):
        templates(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scheduler": {"leaderElection": {}}}, "scheduler.leaderElection is set by the chart"),
        ({"settings": {"leaderElection": {}}}, "settings.leaderElection is set by the chart"),
        ({"settings": {"health": {}}}, "settings.health is set by the chart"),
        ({"settings": {"batch": []}}, "settings.batch is set by the chart"),
        ({"settings": {"kubeconfig": "x"}}, "settings.kubeconfig is set by the chart"),
        ({"settings": {"journal": {}}}, "settings.journal is set by the chart"),
        (
            {"journal": {"signing": {"anchorClaim": "x"}}},
            "anchorClaim needs journal.signing.secret",
        ),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is required"),
    ],
)
def test_templates_reject(values: Values, message: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=message):
        rendered(values)


def _paths(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}"
        if not inner.get("additionalProperties", True):
            yield from _paths(inner, f"{path}{name}.")


def test_values_and_schema_are_complete() -> None:
    with helm.Chart.load(CHART) as chart:
        schema, defaults = chart.schema, chart.values
        chart.validate_schema({})
    assert schema is not None
    for path in _paths(schema):
        place: Any = defaults
        if path == "global" or path.startswith("settings."):
            continue
        for name in path.split("."):
            if name not in place:
                assert path.startswith("image.") or name in place, path
            place = place[name]


def test_readme_lists_every_value() -> None:
    with helm.Chart.load(CHART) as chart:
        message = (CHART / "README.md").read_text()
        assert [name for name in chart.values if f"`{name}" not in message] == []
