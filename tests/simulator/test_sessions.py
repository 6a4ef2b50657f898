"""Batch sessions on the virtual clock: gangs, evictions and PodGroup status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asched.audit.replay import replay
from asched.config.file import parse
from asched.framework.sessions import SessionSpec
from asched.journal.memory import MemoryStore
from asched.model.groups import IncubatorPodGroup
from asched.simulator.expansion import expand
from asched.simulator.loop import SchedulerSettings, Simulation
from asched.simulator.scenario import read_scenario
from asched.simulator.trace import EndReason, PodRun, WorkloadRun
from asched.state.records import AnyRecord
from asched.state.session_records import SessionExecuted
from asched.testing.invariants import check
from tests.cycle.default_profile import installed
from tests.simulator.simulate import BEGIN_NS, account, seconds

GROUP = "scheduling.incubator.k8s.io/v1alpha1"
CONF = """\
actions: "allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: predicates}, {name: nodeorder}]
"""


def group(name: str, members: int, priority: str) -> dict[str, Any]:
    spec = {"minMember": members, "queue": "default", "priorityClassName": priority}
    return {"apiVersion": GROUP, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def pods(name: str, count: int, cpu: int, **fields: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if priority := fields.pop("priorityClassName", None):
        spec["priorityClassName"] = priority
    metadata = {"annotations": {"scheduling.k8s.io/group-name": name}}
    return {
        "name": name,
        "count": count,
        "template": {"metadata": metadata, "spec": spec},
        **fields,
    }


def _priority(made: dict[str, Any]) -> str:
    return str(made["template"]["spec"].get("priorityClassName", ""))


def sessions(folder: Path) -> tuple[SessionSpec, ...]:
    conf = folder / "conf.yaml"
    conf.write_text(CONF)
    text = f"apiVersion: asched.dev/v1\nkind: AschedConfiguration\nbatch: [{{conf: {conf}}}]\n"
    configuration = parse(text, "test", installed())
    assert not configuration.profiles
    return configuration.sessions


class Held:
    """A scenario of two nodes with four cores each, simulated with sessions."""

    def __init__(
        self, folder: Path, *groups: dict[str, Any], members: int | None = None, **fields: Any
    ) -> None:
        """``members``: minimum members of each group; default: all of its pods."""
        document = {
            "apiVersion": "asched.dev/v1",
            "kind": "Scenario",
            "nodes": [
                {"name": "n", "count": 2, "allocatable": {"cpu": 4, "memory": "8Gi", "pods": 9}}
            ],
            "pods": list(groups),
            **fields,
        }
        document["objects"] = [
            {
                "apiVersion": GROUP,
                "kind": "Queue",
                "metadata": {"name": "default"},
                "spec": {"weight": 1},
            },
            *(group(made["name"], members or made["count"], _priority(made)) for made in groups),
        ]
        history = expand(read_scenario(document), "kube-batch")
        simulation = Simulation(
            history, SchedulerSettings((), sessions=sessions(folder)), installed().load
        )
        self.records: list[AnyRecord] = []
        for turn in simulation.turns():
            self.records += turn.records
            check(simulation.cluster)
        self.run: WorkloadRun = simulation.result()
        self.groups = simulation.cluster.objects(IncubatorPodGroup)
        account(self.run)

    def of(self, name: str) -> list[PodRun]:
        return [found for found in self.run.pods if found.pod.name.startswith(f"{name}-")]


async def test_gang_is_placed_when_complete(tmp_path: Path) -> None:
    every = {"every": "10s"}
    held = Held(tmp_path, pods("gang", 3, 2, arrival=every, lifetime={"fixed": "60s"}))
    assert {seconds(found.bound_ns or 0) for found in held.of("gang")} == {20}
    assert {found.end for found in held.of("gang")} == {EndReason.FINISHED}
    status = held.groups["default/gang"].status
    assert (status.phase, status.succeeded) == ("Pending", 3)
    # It comes to an end: no session is held for the time alone.
    assert sum(isinstance(record, SessionExecuted) for record in held.records) < 15
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=BEGIN_NS)
    await store.append(held.records, written_at_ns=BEGIN_NS)
    assert (await replay(store, installed())).equal


def test_gang_that_does_not_fit_waits_with_a_message(tmp_path: Path) -> None:
    held = Held(tmp_path, pods("gang", 5, 2))
    assert all(not found.placements and found.message for found in held.of("gang"))
    assert held.groups["default/gang"].status.phase == "Pending"


def test_session_evicts_and_victims_are_recreated(tmp_path: Path) -> None:
    held = Held(
        tmp_path,
        pods("low", 2, 4, lifetime={"fixed": "100s"}, priorityClassName="low"),
        pods(
            "high",
            1,
            4,
            arrival={"after": "30s"},
            lifetime={"fixed": "50s"},
            priorityClassName="high",
        ),
        priorityClasses={"low": 1, "high": 10},
        members=1,
    )
    (high,) = held.of("high")
    victims = [found for found in held.of("low") if found.placements[0].end is EndReason.PREEMPTED]
    assert high.end is EndReason.FINISHED
    assert victims
    assert {found.placements[0].by for found in victims} == {high.key}
    assert {found.end for found in held.of("low")} == {EndReason.FINISHED}
