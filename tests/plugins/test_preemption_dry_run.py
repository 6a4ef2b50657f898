"""The dry run equals the reference: batched, per node, and with cached results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asched.cycle.attempt import Attempt
from asched.cycle.post_filter import RejectedNodeStatuses
from asched.cycle.shape_cache import ShapeCache
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, Plugin
from asched.framework.nodes import FilterResult, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.selectors import LabelSelector
from asched.model.workloads import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.node_filters import NodeUnschedulable
from asched.plugins.node_resources.fit import NodeResourcesFit
from tests.cycle.scheduling import Scheduling
from tests.plugins.preemption_reference import Choice, Room, choice
from tests.state.objects import a_node, a_pod

START = datetime(2026, 1, 1, tzinfo=UTC)
APPS = ("web", "db")


class FarSighted(FilterAllPlugin):
    """Rejects nothing, but has cluster scope, so nodes are examined one at a time."""

    name: ClassVar[str] = "FarSighted"
    api_version: ClassVar[int] = 1

    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
        return FilterResult.passing(nodes.size)


LOCAL: tuple[type[Plugin], ...] = (NodeUnschedulable, NodeResourcesFit, DefaultPreemption)


class Scene(msgspec.Struct):
    """A cluster under construction."""

    nodes: list[Node] = []
    on: dict[str, list[Pod]] = {}
    nominated: dict[str, list[Pod]] = {}
    budgets: list[PodDisruptionBudget] = []

    def schedule(self, *plugins: type[Plugin]) -> Scheduling:
        scheduling = Scheduling(*plugins)
        scheduling.see(*self.nodes, *self.budgets)
        for pods in (*self.on.values(), *self.nominated.values()):
            scheduling.see(*pods)
        return scheduling

    def expected(self, pod: Pod) -> dict[str, Choice]:
        found = {}
        for node in self.nodes:
            offered = node.status.allocatable
            room = Room(
                int(str(offered["cpu"])) * 1000,
                int(str(offered["pods"])),
                self.on[node.name],
                self.nominated[node.name],
            )
            chosen = choice(room, pod, self.budgets)
            if chosen is not None:
                found[node.name] = chosen
        return found


def started(pod: Pod, minute: int | None) -> Pod:
    at = None if minute is None else START + timedelta(minutes=minute)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, start_time=at))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    scene = Scene()
    minutes = iter(draw(st.permutations(range(40))))
    for number in range(draw(st.integers(1, 5))):
        name = f"n{number}"
        offered = {"cpu": str(draw(st.integers(1, 4))), "pods": str(draw(st.integers(1, 6)))}
        scene.nodes.append(a_node(name, offered))
        scene.on[name] = [
            started(
                a_pod(
                    f"{name}-{index}",
                    {"cpu": f"{draw(st.sampled_from((0, 250, 500, 1000)))}m"},
                    on=name,
                    priority=draw(st.integers(-1, 3)),
                    labels={"app": draw(st.sampled_from(APPS))},
                ),
                next(minutes),
            )
            for index in range(draw(st.integers(0, 5)))
        ]
        scene.nominated[name] = [
            a_pod(
                f"guest-{name}-{index}",
                {"cpu": "500m"},
                priority=draw(st.integers(0, 4)),
                nominated=name,
            )
            for index in range(draw(st.integers(0, 1)))
        ]
    scene.budgets = [
        PodDisruptionBudget(
            metadata=ObjectMeta(name=f"budget-{app}", namespace="default", uid=f"budget-{app}"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app})),
            status=PodDisruptionBudgetStatus(
                disruptions_allowed=draw(st.integers(0, 2)),
                disrupted_pods=dict.fromkeys(
                    draw(st.sets(st.sampled_from(("n0-0", "n1-1")))), "2026-01-01T00:00:00Z"
                ),
            ),
        )
        for app in draw(st.sets(st.sampled_from(APPS)))
    ]
    return scene


preemptors = st.builds(
    lambda cpu, priority: a_pod("preemptor", {"cpu": f"{cpu}m"}, priority=priority),
    cpu=st.sampled_from((500, 1000, 2000)),
    priority=st.integers(1, 4),
)


def dry_run(scheduling: Scheduling, pod: Pod) -> dict[str, Choice]:
    """The candidates of DefaultPreemption on the nodes that it examines."""
    state = scheduling.state
    profile = state.profiles["default-scheduler"]
    plugin = profile.plugins["DefaultPreemption"]
    assert isinstance(plugin, DefaultPreemption)
    info = PodInfo(pod)
    screening = Attempt(state, profile, info, ShapeCache(state.nodes)).find_feasible_nodes()
    rows = RejectedNodeStatuses(state, screening).rows(Code.UNSCHEDULABLE)
    run = plugin.dry_run(screening.state, info, rows)
    assert {c.node for c in run.candidates} | run.rejected.keys() == {
        state.nodes.names[row] for row in rows.tolist()
    }
    return {
        candidate.node: Choice([v.key for v in candidate.victims], candidate.pdb_violations)
        for candidate in run.candidates
    }


def refusals(
    scheduling: Scheduling, pod: Pod, cache: ShapeCache | None = None
) -> dict[str, Status]:
    """Filter statuses by node, with nominated pods."""
    state = scheduling.state
    profile = state.profiles["default-scheduler"]
    attempt = Attempt(state, profile, PodInfo(pod), cache or ShapeCache(state.nodes))
    statuses = RejectedNodeStatuses(state, attempt.find_feasible_nodes())
    found = {name: statuses.status(name) for name in state.nodes.names}
    return {name: status for name, status in found.items() if status is not None}


def refused(scheduling: Scheduling, pod: Pod) -> set[str]:
    """Nodes on which preemption may help: rejected, but not unresolvable."""
    found = refusals(scheduling, pod).items()
    return {name for name, status in found if status.code is Code.UNSCHEDULABLE}


@given(scenes(), preemptors)
def test_batched_and_single_dry_runs_match_reference(scene: Scene, pod: Pod) -> None:
    together = scene.schedule(*LOCAL)
    apart = scene.schedule(FarSighted, *LOCAL)
    where = refused(together, pod)
    expected = {node: chosen for node, chosen in scene.expected(pod).items() if node in where}
    assert dry_run(together, pod) == expected
    assert dry_run(apart, pod) == expected


@given(scenes(), preemptors, st.data())
def test_cached_results_equal_new_results(scene: Scene, pod: Pod, data: st.DataObject) -> None:
    scheduling = scene.schedule(*LOCAL)
    cache = ShapeCache(scheduling.state.nodes)
    dry_run(scheduling, pod)
    refusals(scheduling, pod, cache)
    for _ in range(3):
        change(scene, scheduling, data)
        fresh = scene.schedule(*LOCAL)
        assert dry_run(scheduling, pod) == dry_run(fresh, pod)
        assert refusals(scheduling, pod, cache) == refusals(fresh, pod)
        assert refusals(scheduling, pod) == refusals(scene.schedule(FarSighted, *LOCAL), pod)


def change(scene: Scene, scheduling: Scheduling, data: st.DataObject) -> None:
    """Change one thing in the scene and in the scheduler's state."""
    node = data.draw(st.sampled_from(scene.nodes))
    what = data.draw(st.sampled_from(("start", "label", "nominate", "node", "budget")))
    pods = scene.on[node.name]
    match what:
        case "start" if pods:
            pods[0] = started(pods[0], 100)
            scheduling.see(pods[0])
        case "label" if pods:
            metadata = msgspec.structs.replace(pods[-1].metadata, labels={"app": "db"})
            pods[-1] = msgspec.structs.replace(pods[-1], metadata=metadata)
            scheduling.see(pods[-1])
        case "nominate":
            guest = a_pod(f"late-{node.name}", {"cpu": "1"}, priority=4, nominated=node.name)
            if guest not in scene.nominated[node.name]:
                scene.nominated[node.name].append(guest)
            scheduling.see(guest)
        case "node":
            bigger = a_node(node.name, {"cpu": "4", "pods": "6"})
            scene.nodes[scene.nodes.index(node)] = bigger
            scheduling.see(bigger)
        case "budget" if scene.budgets:
            status = PodDisruptionBudgetStatus(disruptions_allowed=0)
            scene.budgets[0] = msgspec.structs.replace(scene.budgets[0], status=status)
            scheduling.see(scene.budgets[0])
