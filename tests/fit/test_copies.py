"""Copies of a pod: placed by the decisions that the scheduler makes when they are created."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from asched.audit.lookup import AuditError
from asched.fit.answer import FitQuery, fit
from asched.fit.forms import FitAnswer, FitCosts
from asched.fit.manifest import object_of
from asched.model.node import NodeSpec
from asched.model.resources import Resource, decode
from asched.model.workloads import PriorityClass
from asched.pricing.prices import parse_prices
from asched.state.records import Assigned
from tests.audit.recording import REGISTRY, Recording, node, pod
from tests.plugins.dynamic_resources.objects import a_slice
from tests.run_size import examples

Object = dict[str, Any]

CPUS = st.integers(1, 4)


def one_pod(cpu: str, **spec: Any) -> Object:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try"},
        "spec": {"containers": [container], **spec},
    }  # fmt: skip


async def answer(recording: Recording, manifest: Object, **query: Any) -> FitAnswer:
    journal = await recording.journal()
    return await fit(journal, FitQuery(object_of(manifest, "m"), **query), REGISTRY.load)


def cluster(nodes: list[int], running: list[int]) -> Recording:
    recording = Recording()
    recording.see(*(node(f"n{index}", str(cpu)) for index, cpu in enumerate(nodes)))
    for index, cpu in enumerate(running):
        recording.see(pod(f"old-{index}", str(cpu)))
        recording.bind(recording.decide())
    return recording


def created(recording: Recording, count: int, cpu: int) -> list[str]:
    """The nodes of copies that are created now, in the order of their decisions."""
    names = ["try" if index == 0 else f"try-{index}" for index in range(count)]
    pods = [pod(name, str(cpu), uid=f"fit-default/{name}") for name in names]
    recording.see(*pods)
    made = recording.decide()
    return [one.node for one in made if isinstance(one, Assigned) and one.uid.startswith("fit-")]


@settings(max_examples=examples(20))
@given(st.lists(CPUS, min_size=1, max_size=5), st.lists(CPUS, max_size=4), st.integers(1, 6), CPUS)
async def test_copies_get_the_nodes_of_real_decisions(
    nodes: list[int], running: list[int], count: int, cpu: int
) -> None:
    found = await answer(cluster(nodes, running), one_pod(str(cpu)), copies=count, unblock=False)
    expected = created(cluster(nodes, running), count, cpu)
    (workload,) = found.workloads
    assert {each.node: each.pods for each in workload.nodes} == {
        name: expected.count(name) for name in expected
    }
    assert (workload.pods, workload.placed) == (count, len(expected))
    assert found.fits == (len(expected) == count)


@settings(max_examples=examples(20))
@given(st.lists(CPUS, min_size=1, max_size=5), st.lists(CPUS, max_size=4), CPUS)
async def test_max_is_the_largest_number_that_fits(
    nodes: list[int], running: list[int], cpu: int
) -> None:
    found = await answer(cluster(nodes, running), one_pod(str(cpu)), most_copies=True)
    most = found.workloads[0].placed
    assert most == len(created(cluster(nodes, running), 40, cpu))
    assert found.fits == (most > 0)
    if most:
        exactly = await answer(cluster(nodes, running), one_pod(str(cpu)), copies=most)
        assert exactly.fits
        assert exactly.workloads[0].nodes == found.workloads[0].nodes


def with_priorities() -> Recording:
    recording = Recording()
    urgent = decode(Resource.PRIORITY_CLASSES, b'{"metadata": {"name": "urgent"}, "value": 1000}')
    assert isinstance(urgent, PriorityClass)
    recording.see(urgent, node("a", "4"), node("b", "4"))
    for placed in (pod("large", "4"), pod("small-1", "2"), pod("small-2", "2")):
        recording.see(placed)
        recording.bind(recording.decide())
    return recording


async def test_victims_have_names_and_priorities() -> None:
    found = await answer(with_priorities(), one_pod("2", priorityClassName="urgent"), copies=2)
    assert found.fits
    assert found.nodes == ()
    assert found.workloads[0].evicting == 2
    assert found.victims
    evicted = {victim.name for victim in found.victims}
    assert evicted <= {"small-1", "small-2", "large"}
    assert {victim.priority for victim in found.victims} == {0}
    assert {victim.preemptor for victim in found.victims} <= {"default/try", "default/try-1"}
    assert found.sentence == f"All 2 pods would run after evictions of {len(found.victims)} pods."


async def test_copies_are_counted_without_evictions() -> None:
    recording = with_priorities()
    recording.see(node("c", "1"))
    found = await answer(recording, one_pod("500m", priorityClassName="urgent"), most_copies=True)
    assert (found.workloads[0].placed, found.victims) == (2, ())
    assert found.sentence.startswith("2 copies fit on 1 node. The next one does not: 0/3 nodes")
    assert "copies are counted without evictions" in found.notes


async def test_added_nodes_are_the_fewest_that_suffice() -> None:
    recording = cluster([4, 4], [4, 4])
    found = await answer(recording, one_pod("2"), copies=5)
    assert not found.fits
    assert found.change is not None
    assert found.change.runs == "all"
    assert found.change.summary == "add 3 nodes like n0"
    grown = cluster([4, 4, 4, 4], [4, 4])
    assert not (await answer(grown, one_pod("2"), copies=5)).fits
    grown = cluster([4, 4, 4, 4, 4], [4, 4])
    assert (await answer(grown, one_pod("2"), copies=5)).fits


async def test_added_nodes_bring_their_devices() -> None:
    recording = cluster([1], [])
    recording.see(a_slice("n0", "gpu-0"))
    found = await answer(recording, one_pod("1"), copies=2)
    assert found.change is not None
    assert found.change.summary == "add 1 node like n0"


async def test_added_nodes_are_like_those_that_hold_the_pod() -> None:
    """Many small nodes of several forms, and one node that is large enough."""
    recording = Recording()
    small = [node(f"s{number}-{form}", "1", form=form) for form in "abcde" for number in range(2)]
    recording.see(*small, node("large", "4"))
    found = await answer(recording, one_pod("3"), copies=3)
    assert found.change is not None
    assert (found.change.summary, found.change.runs) == ("add 2 nodes like large", "all")


async def test_costs_of_pods_waits_and_added_nodes() -> None:
    prices = parse_prices(
        "apiVersion: asched.dev/v1\nkind: Prices\ncurrency: EUR\n"
        "resources: {cpu: 1}\nwaits: [{perHour: 0.5}]\n",
        "prices.yaml",
    )
    found = await answer(cluster([4], [1]), one_pod("2"), copies=4, prices=prices)
    assert found.workloads[0].placed == 1
    assert found.change is not None
    assert (found.change.node, found.change.nodes) == ("n0", 2)
    assert found.costs == FitCosts(2.0, 1.5, change_per_hour=8.0, currency="EUR")
    fitting = await answer(cluster([4], [1]), one_pod("2"), prices=prices)
    assert fitting.costs == FitCosts(2.0, 0.0, currency="EUR")
    assert fitting.explanation.costs is not None
    assert fitting.explanation.costs.chosen.node == "n0"


async def test_smaller_change_precedes_new_nodes() -> None:
    recording = Recording()
    recording.see(node("a", "4", taint="dedicated"), node("b", "1"))
    found = await answer(recording, one_pod("2"))
    assert found.change is not None
    assert found.change.node == "a"
    assert "tolerates dedicated" in found.change.summary


@pytest.mark.parametrize(
    ("tainted_cpu", "summary"),
    [(8, "the pod tolerates dedicated:NoSchedule (a)"), (2, "add 2 nodes like b")],
)
async def test_change_with_which_all_pods_run_precedes_one_that_helps_the_next(
    tainted_cpu: int, summary: str
) -> None:
    """A toleration in the template is for all pods; on a small node only one of them uses it."""
    recording = Recording()
    recording.see(node("a", str(tainted_cpu), taint="dedicated"), node("b", "2"))
    found = await answer(recording, one_pod("2"), copies=4 if tainted_cpu == 8 else 3)
    assert found.change is not None
    assert (found.change.summary, found.change.runs) == (summary, "all")


async def test_labels_and_cordons_are_tried_with_all_pods() -> None:
    recording = Recording()
    cordoned = replace(node("a", "8"), spec=NodeSpec(unschedulable=True))
    recording.see(cordoned, node("b", "2"))
    found = await answer(recording, one_pod("2"), copies=5)
    assert found.change is not None
    assert (found.change.summary, found.change.runs) == ("uncordon the node (a)", "all")
    pods = one_pod("2", nodeSelector={"disk": "ssd"})
    recording = Recording()
    recording.see(node("a", "8"), node("b", "2", disk="ssd"))
    found = await answer(recording, pods, copies=5)
    assert found.change is not None
    assert (found.change.summary, found.change.runs) == ("label the node disk=ssd (a)", "all")


async def test_change_that_helps_the_next_pod_if_none_helps_all() -> None:
    """New nodes would be tainted, or too small."""
    recording = Recording()
    recording.see(node("a", "2", taint="dedicated", rack="a"), node("b", "1"))
    pods = one_pod("2", nodeSelector={"rack": "a"})
    found = await answer(recording, pods, copies=2)
    assert found.change is not None
    assert found.change.runs == "next"
    assert "tolerates dedicated" in found.change.summary


@pytest.mark.parametrize("kind", ["DaemonSet", "List"])
async def test_copies_need_one_workload_with_a_number(kind: str) -> None:
    template = {"spec": one_pod("1")["spec"]}
    manifest: Object = {
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "d"},
        "spec": {"template": template}, "items": [one_pod("1"), one_pod("1")],
    }  # fmt: skip
    with pytest.raises(AuditError, match=r"copies apply to|the nodes determine"):
        await answer(cluster([4], []), manifest, copies=2)
