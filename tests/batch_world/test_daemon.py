"""A daemon with batch sessions, end to end, on the embedded API server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import anyio
import anyio.lowlevel
import pytest

from asched.apiserver.faults import Fault, FaultKind
from asched.audit.lookup import fold_before
from asched.batch.registry import SessionRegistry
from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.process import Runtime
from asched.daemon.startup import DaemonContext
from asched.daemon.telemetry.metrics import Metrics
from asched.framework.session_plugins import Action, Session
from asched.framework.sessions import EvictionReason
from asched.journal import open_journal
from asched.kube.connection import connect
from asched.kube.timing import SystemClock
from asched.model.groups import IncubatorPodGroup
from asched.model.quantity import NS_PER_S
from asched.model.resources import GroupResource, Resource
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.records import (
    Assigned,
    BindFailed,
    EngineStarted,
    ObjectDeleted,
    ObjectObserved,
    PodObserved,
    PodUpdated,
    Rejected,
    TurnStarted,
)
from asched.state.session_records import EvictionDecided, PodGroupStatusDecided, SessionExecuted
from asched.testing.invariants import check
from tests.batch_world.jobs import (
    BATCH,
    add_gang,
    bound,
    check_replay,
    prepare,
    recorded,
    run_all,
    set_phase,
    status,
    unschedulable,
)
from tests.daemon.world import OWN, TIMEOUT_S, World, world


async def test_gangs_are_complete_and_oversized_gang_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=4, cpu="4") as w:
        prepare(w)
        add_gang(w, "fits", 6, "2")
        add_gang(w, "huge", 9, "2")
        async with w.daemon(BATCH):
            await w.until(lambda: bound(w, "fits") == 6 and bool(unschedulable(w, "huge")))
            condition = unschedulable(w, "huge")
            assert condition["status"] == "True"
            assert condition["reason"] == "NotEnoughResources"
            assert "tasks in gang unschedulable" in condition["message"]
            assert condition["transitionID"].startswith("kube-batch-")
            assert condition["lastTransitionTime"]
            await w.until(lambda: status(w, "fits").get("phase") == "Running")
            assert status(w, "huge")["phase"] == "Pending"
            assert bound(w, "huge") == 0
            await w.until(lambda: "Unschedulable" in dict(w.events("huge")))
            await w.until(lambda: w.condition("huge-0").get("reason") == "Unschedulable")
            await w.until(lambda: "Scheduled" in dict(w.events("fits-0")))
        assert await check_replay(w) > 0
        assert "s3cr3t" not in "".join(map(repr, await recorded(w)))


async def test_pods_of_other_schedulers_are_ignored(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        w.add_pod("stranger")
        w.add_pod("alone", schedulerName="kube-batch")
        async with w.daemon(BATCH) as daemon:
            await w.until(lambda: bool(w.node_of("alone")))
            assert not daemon.cluster.profiles
            assert not daemon.cluster.queue.active
        assert not w.node_of("stranger")


async def test_idle_cluster_adds_no_records(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        prepare(w)
        add_gang(w, "huge", 4, "1")
        async with w.daemon(BATCH) as daemon:
            await w.until(lambda: bool(unschedulable(w, "huge")))
            await w.until(lambda: w.condition("huge-3").get("reason") == "Unschedulable")
            await quiet(daemon)
        sessions = [r for r in await recorded(w) if isinstance(r, SessionExecuted)]
        rejections = [r for r in await recorded(w) if isinstance(r, Rejected)]
        assert len(rejections) == 4, "what was said once is not said again"
        assert len(sessions) < 8
        assert await check_replay(w) > 0


async def test_gang_is_placed_when_resources_appear(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="4") as w:
        prepare(w)
        add_gang(w, "pair", 2, "3")
        async with w.daemon(BATCH):
            await w.until(lambda: bool(unschedulable(w, "pair")))
            assert bound(w, "pair") == 0
            w.add_node("late", cpu="4")
            await w.until(lambda: bound(w, "pair") == 2)
            await w.until(lambda: status(w, "pair")["phase"] == "Running")
        assert await check_replay(w) > 0


async def test_finished_pods_count_for_their_job(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        prepare(w)
        add_gang(w, "job", 2, "2")
        async with w.daemon(BATCH) as daemon:
            await w.until(lambda: bound(w, "job") == 2)
            run_all(w)
            await w.until(lambda: status(w, "job").get("running") == 2)
            set_phase(w, "job-0", "Succeeded")
            set_phase(w, "job-1", "Failed")
            await w.until(
                lambda: (
                    (status(w, "job").get("succeeded"), status(w, "job").get("failed")) == (1, 1)
                )
            )
            assert set(daemon.cluster.sessions.finished) == {"default/job-0", "default/job-1"}
            w.cluster.delete("pods", "job-0", namespace="default")
            await w.until(lambda: status(w, "job")["succeeded"] == 0)
            check(daemon.cluster)
        assert await check_replay(w) > 0


PREEMPTING = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""


async def test_session_evicts_for_higher_priority(tmp_path: Path) -> None:
    conf = tmp_path / "kube-batch.yaml"
    conf.write_text(PREEMPTING)
    config = OWN + f"batch: [{{period: 20ms, conf: {conf}}}]\n"
    async with world(tmp_path, nodes=1, cpu="4") as w:
        prepare(w)
        w.cluster.create("priorityclasses", {"metadata": {"name": "high"}, "value": 100})
        add_gang(w, "low", 1, "1", pods=4)
        async with w.daemon(config):
            await w.until(lambda: bound(w, "low") == 4)
            run_all(w)
            await w.until(lambda: status(w, "low").get("running") == 4)
            add_gang(w, "high", 1, "2", priorityClassName="high")
            await w.until(lambda: len(terminating(w)) == 2)
            await w.until(lambda: "Evict" in dict(w.events("low")))
            for pod in terminating(w):
                w.cluster.delete("pods", pod, namespace="default", grace_period_s=0)
            await w.until(lambda: bound(w, "high") == 1)
        evictions = [r for r in await recorded(w) if isinstance(r, EvictionDecided)]
        assert len(evictions) == 2, "no victim too many, however many sessions were held meanwhile"
        assert {e.reason for e in evictions} == {EvictionReason.PREEMPT}
        assert {e.preemptor.key for e in evictions} == {"default/high-0"}
        assert await check_replay(w) > 0


async def quiet(daemon: Daemon) -> None:
    """Waits until no session is due."""
    with anyio.fail_after(TIMEOUT_S):
        while any(profile.changed for profile in daemon.cluster.sessions):
            await anyio.lowlevel.checkpoint()


def terminating(w: World) -> list[str]:
    pods = w.cluster.list("pods")
    return [p["metadata"]["name"] for p in pods if "deletionTimestamp" in p["metadata"]]


class HurriedClock(SystemClock):
    """A clock an hour ahead, which advances a second per reading."""

    def __init__(self) -> None:
        self._ahead_ns = 3_600 * NS_PER_S

    def time_ns(self) -> int:
        self._ahead_ns += NS_PER_S
        return time.time_ns() + self._ahead_ns


class Witness(Action):
    """Only records the times of its sessions."""

    name: ClassVar[str] = "witness"
    held_ns: ClassVar[list[int]] = []

    def execute(self, session: Session) -> None:
        self.held_ns.append(session.cluster.now_ns)


async def test_session_uses_the_recorded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a session after a restart that is due before the lists are complete."""
    installed = SessionRegistry.discover()
    plugins = {name: installed.plugin(name) for name in installed.plugin_names}
    registry = SessionRegistry(plugins, {"witness": Witness})
    monkeypatch.setattr(SessionRegistry, "discover", lambda: registry)
    conf = tmp_path / "kube-batch.yaml"
    conf.write_text('actions: "witness"\ntiers: [{plugins: [{name: gang}]}]\n')
    config = OWN + f"batch: [{{period: 20ms, conf: {conf}}}]\n"
    configuration = parse(config, "test", PluginRegistry.discover())
    runtime = Runtime.of_this_process()._replace(clock=HurriedClock())
    Witness.held_ns.clear()
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        add_gang(w, "idle", 1, "1")
        async with w.daemon(config) as daemon:
            # Its writes must be observed; otherwise the next daemon's lists contain changes.
            with anyio.fail_after(TIMEOUT_S):
                while not says_so_itself(daemon):
                    await anyio.lowlevel.checkpoint()
            await quiet(daemon)
        before = len(Witness.held_ns)
        async with (
            open_journal(str(w.journal)) as store,
            connect(w.kubeconfig) as client,
            running_daemon(
                DaemonContext(
                    configuration, PluginRegistry.discover(), client, store, runtime=runtime
                )
            ) as daemon,
        ):
            with anyio.fail_after(TIMEOUT_S):
                while len(Witness.held_ns) == before:
                    await anyio.lowlevel.checkpoint()
        records = await recorded(w)
    now_ns, recorded_ns = 0, []
    for record in records:
        if isinstance(record, TurnStarted):
            now_ns = record.now_ns
        elif isinstance(record, SessionExecuted):
            recorded_ns.append(now_ns)
    assert Witness.held_ns == recorded_ns
    restart = max(n for n, record in enumerate(records) if isinstance(record, EngineStarted))
    kinds = [type(record) for record in records[restart:]]
    news = kinds[: kinds.index(SessionExecuted)]
    assert not {ObjectObserved, PodObserved, PodUpdated, ObjectDeleted} & {*news}, (
        "the lists bring no news"
    )
    assert news.count(TurnStarted) == 1, "the start was another turn"


def says_so_itself(daemon: Daemon) -> bool:
    """Whether the conditions that a session wrote are observed."""
    groups = [bool(g.status.conditions) for g in daemon.cluster.objects(IncubatorPodGroup).values()]
    pods = [bool(entry.info.pod.status.conditions) for entry in daemon.cluster.pods.values()]
    return bool(groups and pods) and all(groups + pods)


async def test_failed_binding_is_retried_in_a_later_session(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        w.faults.add(Fault(FaultKind.STATUS, verb="create", resource="pods/binding", code=403))
        add_gang(w, "job", 2, "1")
        async with w.daemon(BATCH):
            await w.until(lambda: bound(w, "job") == 2)
        records = await recorded(w)
        [failure] = [r for r in records if isinstance(r, BindFailed)]
        places = [r for r in records if isinstance(r, Assigned) and r.key == failure.key]
        assert len(places) == 2
        assert places[0].session < places[1].session
        assert await check_replay(w) > 0


async def test_rejected_status_write_is_not_retried_forever(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        w.faults.add(Fault(FaultKind.STATUS, verb="patch", resource="podgroups/status", code=403))
        add_gang(w, "job", 2, "1")
        async with w.daemon(BATCH) as daemon:
            await w.until(lambda: bound(w, "job") == 2)
            await quiet(daemon)
            first = [r for r in await recorded(w) if isinstance(r, PodGroupStatusDecided)]
            assert len(first) >= 1
            run_all(w)
            await w.until(lambda: status(w, "job").get("running") == 2)
        assert await check_replay(w) > 0


async def test_replay_starts_at_any_record(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        prepare(w)
        for number in range(3):
            add_gang(w, f"job{number}", 2, "1")
        async with w.daemon(BATCH):
            await w.until(lambda: all(bound(w, f"job{n}") == 2 for n in range(3)))
        count = len(await recorded(w))
        for first in range(1, count, 3):
            await check_replay(w, first)
        async with open_journal(str(w.journal), read_only=True) as store:
            for seq in range(2, count, 7):
                state = (await fold_before(store, PluginRegistry.discover().load, seq)).state
                check(state)
                again = restore(checkpoint_of(state), PluginRegistry.discover().load).state
                check(again)
                assert again.sessions.specs == state.sessions.specs
                assert [p.due_ns() for p in again.sessions] == [p.due_ns() for p in state.sessions]


async def test_kubernetes_pod_groups_are_gangs(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="4") as w:
        prepare(w)
        native = "podgroups.scheduling.k8s.io"
        w.cluster.listen(native, lambda change: w.touch())
        for name, size in (("small", 2), ("large", 9)):
            policy = {"gang": {"minCount": size}}
            group = {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}}
            w.cluster.create(native, group)
            for number in range(size):
                member = {"podGroupName": name}
                w.add_pod(
                    f"{name}-{number}", "1", schedulerName="kube-batch", schedulingGroup=member
                )

        def scheduled(name: str) -> tuple[str, str]:
            found = w.cluster.get(native, name, namespace="default").get("status") or {}
            for condition in found.get("conditions") or ():
                if condition["type"] == "PodGroupScheduled":
                    return condition["status"], condition["reason"]
            return "", ""

        async with w.daemon(BATCH):
            await w.until(lambda: scheduled("small") == ("True", "Scheduled"))
            await w.until(lambda: scheduled("large") == ("False", "Unschedulable"))
            assert (bound(w, "small"), bound(w, "large")) == (2, 0)
        assert await check_replay(w) > 0


async def test_watches_depend_on_the_configuration(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon() as daemon:
            await daemon.engine.synced.wait()
            assert {r.resource for r in daemon.watch.reflectors} == {*Resource}
        async with w.daemon(BATCH) as daemon:
            await daemon.engine.synced.wait()
            watched = {r.resource for r in daemon.watch.reflectors}
            unread = {GroupResource.WORKLOADS, GroupResource.COMPOSITE_POD_GROUPS}
            assert watched == {*Resource, *GroupResource} - unread


async def test_metrics_have_kube_batch_names(tmp_path: Path) -> None:
    metrics = Metrics()
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        add_gang(w, "job", 2, "1")
        async with w.daemon(BATCH, metrics=metrics):
            await w.until(lambda: bound(w, "job") == 2)
    value = metrics.registry.get_sample_value
    took = value("volcano_action_scheduling_latency_microseconds_count", {"action": "allocate"})
    assert took
    opened = {"plugin": "gang", "OnSession": "OnSessionOpen"}
    assert value("volcano_plugin_scheduling_latency_microseconds_count", opened)
    assert value("volcano_schedule_attempts_total", {"result": "scheduled"}) == 2
    assert value("asched_sessions_total", {"profile": "kube-batch", "result": "ok"})
    assert value("asched_session_operations_total", {"action": "allocate", "operation": "bound"})
