"""Prices and costs of runs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from asched.audit.whatif.measures import measured
from asched.audit.whatif.occupancy import workload_of
from asched.cli.main import app
from asched.config.file import ConfigFileError
from asched.model.meta import ObjectMeta
from asched.model.node import Node, NodeStatus
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.planning.workloads import default_scheduler
from asched.pricing.alternatives import decision_costs
from asched.pricing.costs import RunCosts, costs_of, hourly_costs
from asched.pricing.prices import Prices, parse_prices
from asched.simulator.expansion import expand
from asched.simulator.loop import simulate
from asched.simulator.scenario import read_scenario
from asched.simulator.trace import NodeSpan, PodPlacement, PodRun, WorkloadRun
from tests.audit.recording import REGISTRY
from tests.planning.journals import SCENARIO

HEADER = "apiVersion: asched.dev/v1\nkind: Prices\n"
HOUR_NS = 3600 * NS_PER_S


def prices(text: str = "") -> Prices:
    return parse_prices(f"{HEADER}resources: {{cpu: 1, memory: 0.25}}\n{text}", "prices.yaml")


def node(name: str, cpu: int, memory_gib: int, labels: dict[str, str] | None = None) -> Node:
    allocatable: dict[str, str | int | float] = {
        "cpu": str(cpu),
        "memory": f"{memory_gib}Gi",
        "pods": "110",
    }
    return Node(
        metadata=ObjectMeta(name=name, labels=labels or {}),
        status=NodeStatus(allocatable=allocatable),
    )


def pod(name: str, cpu: str, namespace: str = "default") -> Pod:
    given: dict[str, object] = {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
    }
    return msgspec.convert(given, Pod)


def test_node_prices() -> None:
    found = prices(
        "nodes:\n- {labels: {type: spot, size: l}, perHour: 0.5}\n"
        "- {labels: {type: spot}, perHour: 2}\n"
    )
    assert found.node_per_hour(node("a", 8, 16)) == 8 + 4
    assert found.node_per_hour(node("a", 8, 16, {"type": "spot"})) == 2
    assert found.node_per_hour(node("a", 8, 16, {"type": "spot", "size": "l"})) == 0.5


def test_wait_prices() -> None:
    found = prices(
        "waits:\n- {namespace: shop, labels: {app: web}, perHour: 3}\n"
        "- {namespace: shop, perHour: 1}\n"
    )
    assert found.wait_per_hour(pod("web", "1", "shop")) == 3
    assert found.wait_per_hour(pod("batch", "1", "shop")) == 1
    assert found.wait_per_hour(pod("web", "1")) == 0


def test_costs_of_a_run() -> None:
    """Two hours of two nodes; one is removed after an hour; a pod of 2 cores runs for one
    hour on the node of 4 cores and 16 GiB, which costs 8."""
    placement = PodPlacement("a", HOUR_NS, HOUR_NS, 2 * HOUR_NS)
    run = WorkloadRun(
        0,
        2 * HOUR_NS,
        (PodRun(pod("web", "2"), 0, placements=(placement,)),),
        (NodeSpan(node("a", 4, 16), 0), NodeSpan(node("b", 1, 4), 0, HOUR_NS)),
    )
    waits = [(run.pods[0], HOUR_NS)]
    found = costs_of(run, waits, prices("currency: EUR\nwaits: [{perHour: 0.5}]\n"))
    assert found == RunCosts(nodes=2 * 8 + 2, idle=18 - 2, waits=0.5, currency="EUR")
    assert found.total == 18.5
    now = hourly_costs([span.node for span in run.nodes], [(run.pods[0].pod, "a")], prices())
    assert (now.nodes, now.idle) == (10, 8)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.floats(0.001, 1000))
def test_requests_of_a_full_node_account_for_its_price(
    cpu: int, memory_gib: int, part: int, per_hour: float
) -> None:
    one = node("a", cpu, memory_gib, {"x": "y"})
    found = prices(f"nodes: [{{labels: {{x: y}}, perHour: {per_hour!r}}}]\n")
    full = {"cpu": cpu * 1000, "memory": memory_gib << 30}
    assert found.requests_per_hour(full, one) == pytest.approx(per_hour)
    parts = {"cpu": cpu * 1000 / part, "memory": (memory_gib << 30) / part}
    requested = found.requests_per_hour(parts, one)  # type: ignore[arg-type]
    assert requested == pytest.approx(per_hour / part)


def test_costs_of_a_simulation() -> None:
    """Idle and requested costs follow from the utilization if only cpu has a price."""
    trace = expand(read_scenario(SCENARIO), "default-scheduler")
    run = simulate(trace, default_scheduler(REGISTRY), REGISTRY.load)
    only_cpu = parse_prices(f"{HEADER}resources: {{cpu: 1}}\nwaits: [{{perHour: 1}}]\n", "p")
    figures = measured(run, workload_of(run.pods), only_cpu).figures
    assert figures.costs is not None
    cores, hours = 4 * 8 + 2 * 2, (run.end_ns - run.begin_ns) / HOUR_NS
    assert figures.costs.nodes == pytest.approx(cores * hours)
    used = figures.resources["cpu"].utilisation.mean
    assert figures.costs.idle == pytest.approx(cores * hours * (1 - used))
    assert figures.costs.waits == pytest.approx(figures.time_pending.total_seconds / 3600)
    assert measured(run, workload_of(run.pods)).figures.costs is None


@given(
    sizes=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=6),
    cpu=st.integers(0, 4),
    spot=st.sets(st.integers(0, 5)),
    data=st.data(),
)
def test_no_feasible_node_is_cheaper_than_the_cheapest(
    sizes: list[tuple[int, int]], cpu: int, spot: set[int], data: st.DataObject
) -> None:
    rules = prices("nodes: [{labels: {a: spot}, perHour: 1}]")
    ranked = [
        node(f"n{i}", *size, {"a": "spot"} if i in spot else {}) for i, size in enumerate(sizes)
    ]
    chosen = data.draw(st.sampled_from(ranked))
    found = decision_costs(pod("p", str(cpu)), chosen.name, ranked, rules)
    assert (found.chosen.node, found.chosen.pod_difference) == (chosen.name, 0)
    saved = found.chosen.pod_per_hour - found.cheapest.pod_per_hour
    assert found.cheapest.pod_difference == -saved
    for other in ranked:
        alone = decision_costs(pod("p", str(cpu)), other.name, [other], rules)
        assert alone.runner_up is None
        assert alone.cheapest == alone.chosen
        assert found.cheapest.pod_per_hour <= alone.chosen.pod_per_hour
        if alone.chosen.pod_per_hour == found.cheapest.pod_per_hour:
            assert found.cheapest.node_per_hour <= alone.chosen.node_per_hour
    others = [one.name for one in ranked if one.name != chosen.name]
    assert (found.runner_up and found.runner_up.node) == (others[0] if others else None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resources: {cpu: -1}\n", "p.yaml:3: resources"),
        ("resources: {}\n", "expected the price of at least one resource, such as cpu"),
        ("resources: {cpu: 1}\nnode: []\n", ":4: node: unknown field; did you mean nodes?"),
        ("resources: {cpu: 1}\nnodes: [{labels: {a: b}}]\n", "nodes[0]"),
        ("{", "not valid YAML"),
    ],
)
def test_mistakes_are_located(text: str, message: str) -> None:
    with pytest.raises(ConfigFileError) as failed:
        parse_prices(HEADER + text, "p.yaml")
    assert message in "\n".join(failed.value.lines)


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(f"{HEADER}currency: EUR\nresources: {{cpu: 0.03, memory: 0.004}}\n")
    run = ["simulate", "docs/examples/scenario.yaml", "--prices", str(file)]
    shown = CliRunner().invoke(app, [*run, "--html", str(tmp_path / "r.html")])
    assert shown.exit_code == 0, shown.output
    assert "cost of nodes (EUR)" in shown.stdout
    assert "cost of nodes (EUR)" in (tmp_path / "r.html").read_text()
    found = json.loads(CliRunner().invoke(app, [*run, "-o", "json"]).stdout)
    costs = found["run"]["figures"]["costs"]
    assert 0 < costs["idle"] < costs["nodes"]
    file.write_text(HEADER)
    failed = CliRunner().invoke(app, run)
    assert (failed.exit_code, "resources" in failed.output) == (2, True)
