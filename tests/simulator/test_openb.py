"""Import of the openb trace, with small tables and the recorded trace."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import msgspec
import pytest

from asched.core.heap import infrequent_gc
from asched.model.node import Node
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import SchedulerSettings, simulate
from asched.simulator.openb import (
    BEGIN_NS,
    GPU_COUNT,
    GPU_MILLI,
    Table,
    TraceError,
    assumptions,
    read_openb,
)
from asched.simulator.trace import (
    EndReason,
    ObjectSet,
    PodCreated,
    PodDeleted,
    PodRun,
    WorkloadRun,
    WorkloadTrace,
)
from tests.cycle.default_profile import default_profiles, installed
from tests.simulator.simulate import account

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
cpu-only,32000,262144,0,
two-t4,32000,131072,2,T4
one-v100,64000,262144,1,V100M32
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
whole,12000,16384,1,1000,,LS,Running,0,1000,10
half-a,6000,12288,1,500,T4,LS,Running,5,1000,5
half-b,6000,12288,1,500,T4,BE,Running,6,1000,6.0
two,6000,12288,2,1000,T4|P100,LS,Succeeded,7,500,300
v,1000,1024,1,1000,V100M16|V100M32,LS,Running,8,1000,8
batch,4000,8192,0,0,,BE,Failed,20,30,20
hopeless,1000,1024,1,1000,A10,LS,Pending,40,90,
"""
MOST_CPU_S = 60.0
"""Limit of CPU time for the whole trace."""


def trace(nodes: str = NODES, pods: str = PODS) -> WorkloadTrace:
    return read_openb(
        Table("nodes.csv", nodes.splitlines()), Table("pods.csv", pods.splitlines()), "sched"
    )


def test_trace_events() -> None:
    history = trace()
    nodes = [event.object for event in history.events if isinstance(event, ObjectSet)]
    gpus = [(n.name, n.status.allocatable.get(GPU_MILLI)) for n in nodes if isinstance(n, Node)]
    assert gpus == [
        ("cpu-only", None),
        ("two-t4", "2000"),
        ("one-v100", "1000"),
    ]
    pods = {e.pod.name: e for e in history.events if isinstance(e, PodCreated)}
    assert {name: e.run_ns and e.run_ns // NS_PER_S for name, e in pods.items()} == {
        "whole": 990,
        "half-a": 995,
        "half-b": 994,
        "two": 200,
        "v": 992,
        "batch": 10,
        "hopeless": None,
    }
    requests = {name: e.pod.spec.containers[0].resources.requests for name, e in pods.items()}
    assert requests["half-a"] == {"cpu": "6000m", "memory": "12288Mi", GPU_MILLI: "500"}
    assert requests["two"][GPU_MILLI] == "2000"
    assert GPU_MILLI not in requests["batch"]
    assert {e.pod.spec.scheduler_name for e in pods.values()} == {"sched"}
    assert [(e.key, e.at_ns) for e in history.events if isinstance(e, PodDeleted)] == [
        ("openb/hopeless", BEGIN_NS + 90 * NS_PER_S)
    ]


def test_trace_from_a_later_time() -> None:
    tables = Table("nodes.csv", NODES.splitlines()), Table("pods.csv", PODS.splitlines())
    begin_ns = BEGIN_NS + 400 * NS_PER_S
    history = read_openb(*tables, "sched", begin_ns)
    assert history.begin_ns == begin_ns
    assert {event.at_ns for event in history.events} == {begin_ns}
    pods = {e.pod.name: e.run_ns for e in history.events if isinstance(e, PodCreated)}
    remaining_ns = {name: ns and ns // NS_PER_S for name, ns in pods.items()}
    assert remaining_ns == {"whole": 600, "half-a": 600, "half-b": 600, "two": 100, "v": 600}
    waiting = read_openb(*tables, "sched", BEGIN_NS + 50 * NS_PER_S).events
    assert [e.at_ns for e in waiting if isinstance(e, PodDeleted)] == [BEGIN_NS + 90 * NS_PER_S]
    with pytest.raises(TraceError, match=r"pods.csv: no pod exists at 2023-01-01T00:16:41Z"):
        read_openb(*tables, "sched", BEGIN_NS + 1001 * NS_PER_S)


def test_pods_share_gpus_of_requested_models() -> None:
    run = _simulated(trace(), "sched")
    pods = {found.pod.name: found for found in run.pods}
    assert pods["v"].node == "one-v100" or pods["whole"].node == "one-v100"
    assert {pods[name].node for name in ("half-a", "half-b", "two")} == {"two-t4"}
    assert pods["two"].bound_ns == max(pods[n].ended_ns or 0 for n in _before_two(pods))
    assert (pods["hopeless"].node, pods["hopeless"].end) == ("", EndReason.DELETED)


def test_shares_of_several_gpus_have_an_annotation() -> None:
    head, _, row = PODS.partition("whole")
    several = read_openb(
        Table("nodes.csv", NODES.splitlines()),
        Table("pods.csv", (head + "several" + row.replace(",1,1000,", ",3,400,", 1)).splitlines()),
        "sched",
    )
    pods = {e.pod.name: e.pod for e in several.events if isinstance(e, PodCreated)}
    assert pods["several"].spec.containers[0].resources.requests[GPU_MILLI] == "1200"
    assert pods["several"].metadata.declared_annotations == {GPU_COUNT: "3"}
    assert not pods["two"].metadata.declared_annotations


def _before_two(pods: dict[str, PodRun]) -> list[str]:
    """Pods with shares of the two GPUs before the pod that needs both."""
    return [n for n in ("whole", "half-a", "half-b") if pods[n].node == "two-t4"]


@pytest.mark.parametrize(
    ("nodes", "pods", "message"),
    [
        (
            NODES.replace("cpu_milli", "cpus"),
            PODS,
            "nodes.csv:1: no column cpu_milli; expected sn, cpu_milli, memory_mib",
        ),
        (
            NODES,
            PODS.replace("6000,12288,2", "6k,12288,2"),
            "pods.csv:5: cpu_milli: expected a whole number, 0 or more, got '6k'",
        ),
        (
            NODES,
            PODS.replace("5,1000,5", "5,9999999999,5"),
            "pods.csv:3: deletion_time: expected at most 3153600000 seconds, 100 years, got 9999",
        ),
        (
            NODES,
            PODS.replace("5,1000,5", "5,4,5"),
            "pods.csv:3: deletion_time: expected creation_time or later",
        ),
        (NODES, PODS.replace("half-b", "half-a"), "pods.csv:4: name: 'half-a' is listed twice"),
        (NODES + ",1,1,0,\n", PODS, "nodes.csv:5: sn: expected a name, got nothing"),
        (NODES, PODS.replace(",,LS", ',"",L"S'), ""),
        (NODES, PODS + 'x,"1\n', "pods.csv:8: not CSV: unexpected end of data"),
        ("", PODS, "nodes.csv:1: no column sn, cpu_milli, memory_mib; expected sn, "),
    ],
)
def test_invalid_table_names_line_and_error(nodes: str, pods: str, message: str) -> None:
    if not message:
        assert trace(nodes, pods).events
        return
    with pytest.raises(TraceError) as caught:
        trace(nodes, pods)
    assert str(caught.value).startswith(message)


def _without(table: str, *columns: str) -> str:
    rows = [*csv.DictReader(table.splitlines())]
    kept = [name for name in rows[0] if name not in columns]
    return "\n".join([",".join(kept), *(",".join(row[name] for name in kept) for row in rows)])


@pytest.mark.parametrize("absent", [("gpu_spec",), ("qos", "pod_phase"), ("scheduled_time",)])
def test_absent_columns_have_stated_defaults(absent: tuple[str, ...]) -> None:
    lacking = _without(PODS, *absent)
    tables = Table("nodes.csv", NODES.splitlines()), Table("pods.csv", lacking.splitlines())
    assert [text.partition(": ")[0] for text in assumptions(*tables)] == [
        f"pods.csv has no column {column}" for column in absent if column != "pod_phase"
    ]
    pods = {e.pod.name: e for e in trace(pods=lacking).events if isinstance(e, PodCreated)}
    assert len(pods) == 7
    assert (pods["v"].pod.spec.affinity is None) == ("gpu_spec" in absent)
    assert bool(pods["v"].pod.metadata.labels) == ("qos" not in absent)
    assert (pods["hopeless"].run_ns is None) == ("scheduled_time" not in absent)


def test_tables_without_times_and_models() -> None:
    times = ("creation_time", "deletion_time", "scheduled_time")
    nodes, pods = _without(NODES, "model"), _without(PODS, *times)
    events = trace(nodes, pods).events
    assert {event.at_ns for event in events} == {BEGIN_NS}
    created = [event for event in events if isinstance(event, PodCreated)]
    assert [event.run_ns for event in created] == [None] * 7
    tables = Table("nodes.csv", nodes.splitlines()), Table("pods.csv", pods.splitlines())
    assert len(assumptions(*tables)) == 4
    assert assumptions(*(table._replace(lines=()) for table in tables)) != ()
    whole = Table("nodes.csv", NODES.splitlines()), Table("pods.csv", PODS.splitlines())
    assert assumptions(*whole) == ()


def _recorded(shared_dir: Path, most_pods: int | None = None) -> WorkloadTrace:
    """The recorded trace, or its beginning."""
    folder = shared_dir / "data" / "openb"
    nodes, pods = (
        (folder / name).read_text().splitlines()
        for name in ("openb_node_list_all_node.csv", "openb_pod_list_default.csv")
    )
    last = None if most_pods is None else most_pods + 1  # with the header
    return read_openb(
        Table("nodes.csv", nodes), Table("pods.csv", pods[:last]), "default-scheduler"
    )


@pytest.mark.shared
def test_beginning_of_the_trace_is_reproducible(shared_dir: Path) -> None:
    history = _recorded(shared_dir, 1000)
    run = _simulated(history)
    assert len(run.pods) == 1000
    account(run)
    assert msgspec.json.encode(_simulated(history)) == msgspec.json.encode(run)


@pytest.mark.shared
@pytest.mark.timeout(400)
@pytest.mark.thorough
def test_whole_trace_is_accounted(shared_dir: Path) -> None:
    history = _recorded(shared_dir)
    with infrequent_gc():
        began_s = time.process_time()
        run = _simulated(history)
        took_s = time.process_time() - began_s
    assert took_s < MOST_CPU_S
    assert len(run.nodes) == 1523
    assert len(run.pods) == 8152
    account(run)
    assert sum(found.bound_ns is not None for found in run.pods) == 8151


def _simulated(history: WorkloadTrace, name: str = "default-scheduler") -> WorkloadRun:
    profiles = tuple(
        msgspec.structs.replace(profile, scheduler_name=name) for profile in default_profiles()
    )
    return simulate(history, SchedulerSettings(profiles), installed().load)
