"""External plugins: their answers are recorded, and a replay does not call them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from asched.config.file import ConfigFileError, parse
from asched.daemon.plugin_host import evaluation as m
from asched.daemon.plugin_host.clients import NodeTableSync
from asched.daemon.plugin_host.evaluation import AttemptKey, PluginEvaluator
from asched.daemon.plugin_host.worker import (
    MirroredCluster,
    MirroredHandle,
    NodeMirror,
    NotMirroredError,
    Worker,
)
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.pod_groups import PodGroupKey
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FAILURES, FailureReason, PluginFailureCount
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.model.storage import StorageClass
from asched.state.cluster import ClusterState
from asched.state.records import (
    Assigned,
    AttemptFailed,
    ExtenderCallRequested,
    ExtenderFiltered,
    ExtenderPrioritized,
    Rejected,
)
from asched.testing.builders import node, pod
from tests.daemon.external_plugins import (
    ImpureReserve,
    InvalidPreScore,
    NodeChooser,
    Reader,
    UnreadableScores,
)
from tests.daemon.world import KUBE, OWN, registry_with, world
from tests.extenders.replay import records_of, replayed

PROFILES = """\
profiles:
- schedulerName: default-scheduler
- schedulerName: choosing
  plugins: {multiPoint: {enabled: [{name: NodeChooser}]}}
"""
QUICK = f"---\n{OWN}plugins: [{{name: NodeChooser, timeLimit: 500ms}}]\n"
CONFIG = KUBE + PROFILES + QUICK


def of(records: list[Any], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


async def test_plugin_in_worker_filters_and_scores(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3) as w:
        async with w.daemon(CONFIG, NodeChooser):
            w.add_pod("wants", labels={"target": "n2"}, schedulerName="choosing")
            await w.until(lambda: w.node_of("wants") == "n2")
            w.add_pod("first", schedulerName="choosing")
            await w.until(lambda: w.node_of("first") != "")
            w.add_pod("second", schedulerName="choosing")
            await w.until(lambda: w.node_of("second") != "")
            # It sees the pods on nodes, and scores by them.
            assert {w.node_of("first"), w.node_of("second")} == {"n0", "n1"}
            w.add_node("late")
            w.add_pod("wants-late", labels={"target": "late"}, schedulerName="choosing")
            await w.until(lambda: w.node_of("wants-late") == "late")
            w.add_pod("plain")
            await w.until(lambda: w.node_of("plain") != "")
        records = await records_of(w)
        # A pod that is observed before its node is evaluated twice.
        assert {asked.key for asked in of(records, ExtenderFiltered)} == {
            "default/wants",
            "default/first",
            "default/second",
            "default/wants-late",
        }
        assert {asked.key for asked in of(records, ExtenderPrioritized)} == {
            "default/first",
            "default/second",
        }
        # The recorded answers replace the class; the profile's other plugins run again.
        assert len(of(await replayed(w, NodeChooser), Assigned)) == 5


async def test_worker_rejections_name_the_plugin_and_any_event_requeues(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(CONFIG, NodeChooser):
            w.add_pod("early", labels={"target": "later"}, schedulerName="choosing")
            await w.until(lambda: bool(w.message("early")))
            assert w.message("early").startswith("0/2 nodes are available: 2 not the wanted node.")
            w.add_pod("none", labels={"target": "nothing"}, schedulerName="choosing")
            await w.until(lambda: "2 target is nothing" in w.message("none"))
            w.add_node("later")
            await w.until(lambda: w.node_of("early") == "later")
        rejected = of(await replayed(w, NodeChooser), Rejected)
        assert {decision.unschedulable_plugins for decision in rejected} == {("NodeChooser",)}


@pytest.mark.parametrize(
    ("target", "said", "failure"),
    [
        ("raises", " at Filter: RuntimeError: boom", ("Filter", FailureReason.RAISED)),
        ("leaves", " at Filter: SystemExit: 3", ("Filter", FailureReason.EXITED)),
        ("exits", ": its worker ended with code 7", ("Worker", FailureReason.WORKER_ENDED)),
        (
            "hangs",
            ": no answer within 0.5 s; its worker was ended",
            ("Worker", FailureReason.TIMEOUT),
        ),
    ],
)
async def test_worker_failure_fails_only_its_own_pod(
    tmp_path: Path, target: str, said: str, failure: tuple[str, FailureReason]
) -> None:
    kind = PluginFailureCount("NodeChooser", *failure)
    before = FAILURES.counts[kind]
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(CONFIG, NodeChooser):
            w.add_pod("bad", labels={"target": target}, schedulerName="choosing")
            await w.until(lambda: bool(w.message("bad")))
            message, _, place = w.message("bad").partition(" (daemon/external_plugins.py:")
            assert message == f"plugin NodeChooser{said}"
            assert bool(place) is (target in ("raises", "leaves"))
            assert w.condition("bad")["reason"] == "SchedulerError"
            w.cluster.delete("pods", "bad", namespace="default", grace_period_s=0)
            w.add_pod("plain")
            w.add_pod("good", labels={"target": "n1"}, schedulerName="choosing")
            await w.until(lambda: bool(w.node_of("plain")) and w.node_of("good") == "n1")
        failed = of(await replayed(w, NodeChooser), AttemptFailed)
        assert failed
        assert {decision.plugin for decision in failed} == {"NodeChooser"}
    assert FAILURES.counts[kind] > before


async def test_optional_plugin_is_skipped_on_timeout(tmp_path: Path) -> None:
    optional = (
        KUBE + PROFILES + f"---\n{OWN}"
        "plugins: [{name: NodeChooser, timeLimit: 300ms, optional: true}]\n"
    )
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(optional, NodeChooser):
            w.add_pod("bad", labels={"target": "hangs"}, schedulerName="choosing")
            await w.until(lambda: bool(w.node_of("bad")))
        assert len(of(await replayed(w, NodeChooser), Assigned)) == 1


def reading(path: Path) -> str:
    return KUBE + (
        "profiles:\n- plugins: {filter: {enabled: [{name: Reader}]}}\n"
        f"  pluginConfig: [{{name: Reader, args: {{path: '{path}'}}}}]\n"
    )


async def test_replay_uses_recorded_answers_of_impure_plugin(
    tmp_path: Path,
) -> None:
    file = tmp_path / "open"
    file.write_text("n1")
    async with world(tmp_path, nodes=3) as w:
        async with w.daemon(reading(file), Reader):
            w.add_pod("one")
            await w.until(lambda: w.node_of("one") == "n1")
            file.write_text("n2")
            w.add_pod("two")
            await w.until(lambda: w.node_of("two") == "n2")
        file.unlink()
        Reader.calls.clear()
        decisions = await replayed(w)  # not even its class is there
        assert [len(of(decisions, kind)) for kind in (ExtenderCallRequested, Assigned)] == [2, 2]
        assert Reader.calls == []


def test_worker_follows_node_that_moves_to_an_earlier_row() -> None:
    """Nodes are deleted and created again between two evaluations."""
    daemon, worker = ClusterState(), MirroredCluster()
    sync, mirror = NodeTableSync(daemon.nodes), NodeMirror(worker)

    def follow() -> None:
        for change in sync.changes():
            mirror.apply(change)

    for name in ("n0", "n1"):
        daemon.nodes.set_node(node(name))
    info = PodInfo(pod("p", node="n1"))
    daemon.nodes.add_pod("n1", info)
    follow()
    daemon.nodes.remove_node("n0")
    daemon.nodes.remove_pod("n1", info)
    daemon.nodes.remove_node("n1")
    daemon.nodes.set_node(node("n1"))
    daemon.nodes.add_pod("n1", info)
    follow()
    (row,) = mirror.rows((0,))
    assert worker.nodes.names[row] == "n1"
    assert [other.key for other in worker.nodes.pods(row)] == [info.key]
    assert int(worker.nodes.alive.sum()) == 1


def test_impure_plugin_is_rejected_at_reserve() -> None:
    config = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: ImpureReserve}]}}\n"
    with pytest.raises(ConfigFileError) as refusal:
        parse(config, "file", registry_with(ImpureReserve))
    (line,) = refusal.value.lines
    assert line == (
        "file: profile default-scheduler: plugin ImpureReserve is not pure or runs in a worker,"
        " so it"
        " cannot serve reserve: a replay would have to call it"
    )


def test_status_that_cannot_be_recorded_fails_the_evaluation() -> None:
    cluster = MirroredCluster()
    plugin = InvalidPreScore({}, MirroredHandle(cluster, "default-scheduler"))
    with pytest.raises(PluginFailure, match="InvalidPreScore at PreScore: its answer cannot be"):
        PluginEvaluator(plugin).score(AttemptKey("uid", 1), PodInfo(pod()), cluster.nodes)


def test_worker_reports_invalid_scores_at_score() -> None:
    output = BytesIO()
    worker = Worker(output)
    name, module = UnreadableScores.name, UnreadableScores.__module__
    start = m.StartPlugin(
        name=name,
        module=module,
        qualname=name,
        arguments={},
        scheduler_name="default-scheduler",
        search_path=tuple(sys.path),
    )
    request = m.EvaluationRequest(
        number=1, verb=ExtenderVerb.PRIORITIZE, attempt=1, pod=pod(), rows=(0,), now_ns=0
    )
    for message in (start, m.NodeUpserted(0, node()), request):
        assert worker.handle(message)
    reply = m.EvaluationFailed(
        1,
        "plugin UnreadableScores at Score: its answer cannot be used: unreadable",
        "Score",
        FailureReason.RAISED,
    )
    assert output.getvalue() == m.framed(m.Ready()) + m.framed(reply)


@pytest.mark.parametrize(
    "read",
    [
        lambda handle: handle.cluster.objects(StorageClass),
        lambda handle: handle.cluster.objects_version(StorageClass),
        lambda handle: handle.cluster.group_members(PodGroupKey("default/group", native=False)),
        lambda handle: handle.cluster.gang_pending_members(
            PodGroupKey("default/group", native=False)
        ),
        lambda handle: handle.cluster.groups_at_permit,
        lambda handle: handle.cluster.permit_changes,
        lambda handle: handle.waiting_pods(),
        lambda handle: handle.waiting_members(PodGroupKey("default/group", native=False)),
        lambda handle: handle.nominated_node(PodInfo(pod())),
        lambda handle: handle.nominated_pods("node"),
        lambda handle: handle.evictions,
        lambda handle: handle.is_preempting("uid"),
        lambda handle: handle.preemptors_without_evictions,
        lambda handle: handle.dry_run(CycleState(), PodInfo(pod())),
    ],
)
def test_worker_rejects_reads_of_missing_state(read: Callable[[Handle], object]) -> None:
    handle = MirroredHandle(MirroredCluster(), "default-scheduler")
    with pytest.raises(NotMirroredError, match="a worker has only nodes and the pods on them"):
        read(handle)
