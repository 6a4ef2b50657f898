"""What /metrics shows of a daemon at work, and that it is what kube-scheduler's dashboards ask
for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import aiohttp
import anyio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from asched.config.file import parse
from asched.config.settings import HealthSettings
from asched.core.inputs import Deleted, Upserted
from asched.daemon.engine.inbox import Inbox
from asched.daemon.telemetry.health import Health
from asched.daemon.telemetry.metrics import Metrics, SourceCollector, process_metrics
from asched.daemon.telemetry.scheduler_metrics import exponential_buckets
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin, PermitPlugin, PermitResult
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.model.meta import ObjectMeta
from asched.model.node import Node
from asched.model.resources import Resource
from asched.state.records import PodQuarantined
from tests.core.test_held_updates import Flooded
from tests.daemon.world import KUBE, OWN, TIMEOUT_S, World, registry_with, world


class Upstream(NamedTuple):
    """A metric of kube-scheduler 1.36 or client-go."""

    type: str
    labels: frozenset[str]
    buckets: Sequence[float] = ()


def _counter(*labels: str) -> Upstream:
    return Upstream("counter", frozenset(labels))


def _gauge(*labels: str) -> Upstream:
    return Upstream("gauge", frozenset(labels))


def _histogram(buckets: Sequence[float], *labels: str) -> Upstream:
    return Upstream("histogram", frozenset(labels), buckets)


_ATTEMPT, _POINT = exponential_buckets(0.001, 2, 15), exponential_buckets(0.0001, 2, 12)
UPSTREAM = {
    "scheduler_schedule_attempts": _counter("result", "profile"),
    "scheduler_scheduling_attempt_duration_seconds": _histogram(_ATTEMPT, "result", "profile"),
    "scheduler_scheduling_algorithm_duration_seconds": _histogram(_ATTEMPT),
    "scheduler_pod_scheduling_sli_duration_seconds": _histogram(
        exponential_buckets(0.01, 2, 20), "attempts"
    ),
    "scheduler_pod_scheduling_attempts": _histogram((1, 2, 4, 8, 16)),
    "scheduler_pending_pods": _gauge("queue"),
    "scheduler_cache_size": _gauge("type"),
    "scheduler_unschedulable_pods": _gauge("plugin", "profile"),
    "scheduler_inflight_events": _gauge("event"),
    "scheduler_queue_incoming_pods": _counter("queue", "event"),
    "scheduler_preemption_attempts": _counter(),
    "scheduler_preemption_victims": _histogram((1, 2, 4, 8, 16, 32, 64)),
    "scheduler_permit_wait_duration_seconds": _histogram(_ATTEMPT, "result"),
    "scheduler_framework_extension_point_duration_seconds": _histogram(
        _POINT, "extension_point", "status", "profile"
    ),
    "scheduler_plugin_execution_duration_seconds": _histogram(
        exponential_buckets(0.00001, 1.5, 20), "plugin", "extension_point", "status"
    ),
    "scheduler_plugin_evaluation": _counter("plugin", "extension_point", "profile"),
    "scheduler_queueing_hint_execution_duration_seconds": _histogram(
        exponential_buckets(0.00001, 1.5, 20), "plugin", "event", "hint"
    ),
    "scheduler_event_handling_duration_seconds": _histogram(_POINT, "event"),
    "rest_client_requests": _counter("code", "method", "host"),
    "rest_client_request_duration_seconds": _histogram(
        (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60), "verb", "host"
    ),
}


class Page:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, sample_name: str, **labels: str) -> float:
        """The sum of all samples with these labels."""
        return sum(
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == sample_name and labels.items() <= sample.labels.items()
        )

    def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return {
            (sample.name, frozenset(sample.labels.items()))
            for family in self.families.values()
            for sample in family.samples
        }


async def page_of(health: Health) -> Page:
    async with (
        aiohttp.ClientSession(f"http://{health.address}") as session,
        session.get("/metrics") as response,
    ):
        return Page(await response.text())


@asynccontextmanager
async def shown(metrics: Metrics) -> AsyncIterator[Health]:
    health = Health(metrics.registry)
    async with health.serving(HealthSettings("127.0.0.1:0")):
        yield health


def every_cycle() -> Metrics:
    """Metrics that look at all cycles, not at a tenth."""
    metrics = Metrics()
    metrics.cycles.share = 1.0
    return metrics


async def eventful(w: World) -> None:
    """Pods that fit, one that does not, one that makes room, an important one and its victim."""
    for number in range(10):
        w.add_pod(f"p-{number}", terminationGracePeriodSeconds=0)
    w.add_pod("big", "100")
    await w.until(lambda: w.unbound() == ["big"] and w.message("big") != "")
    w.cluster.create("priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    w.add_pod("important", "3900m", priorityClassName="high")
    await w.until(lambda: w.unbound() == ["big"])


async def test_daemon_has_metrics_of_kube_scheduler(tmp_path: Path) -> None:
    metrics = every_cycle()
    async with world(tmp_path, nodes=1) as w, shown(metrics) as health:
        async with w.daemon(metrics=metrics):
            await eventful(w)
            during = await page_of(health)
        page = await page_of(health)
    for name, upstream in UPSTREAM.items():
        family = page.families[name]
        assert family.type == upstream.type, name
        check_form(family, upstream)

    profile = {"profile": "default-scheduler"}
    points = "scheduler_framework_extension_point_duration_seconds_count"
    attempts = page.value("scheduler_scheduling_algorithm_duration_seconds_count")
    assert page.value(points, extension_point="Filter", **profile) == attempts
    assert page.value(points, extension_point="Bind", status="Success") == 11
    assert page.value(points, extension_point="PostFilter", status="Success") == 1
    plugins = "scheduler_plugin_execution_duration_seconds_count"
    assert page.value(plugins, plugin="DefaultBinder", extension_point="Bind") == 11
    assert page.value(plugins, plugin="NodeResourcesFit", extension_point="Filter") >= 1
    evaluated = "scheduler_plugin_evaluation_total"
    assert page.value(evaluated, plugin="NodeResourcesFit", extension_point="PreFilter") >= 1
    assert page.value(evaluated, extension_point="Bind") == 0

    assert page.value("scheduler_pod_scheduling_sli_duration_seconds_count", attempts="1") == 10
    assert page.value("scheduler_pod_scheduling_attempts_count") == 11
    assert page.value("scheduler_pod_scheduling_attempts_sum") >= 12  # one took two at least
    assert page.value("scheduler_preemption_attempts_total") >= 2
    assert page.value("scheduler_preemption_victims_count") == 1
    incoming = "scheduler_queue_incoming_pods_total"
    assert page.value(incoming, queue="active", event="UnscheduledPodAdd") == 12
    assert page.value(incoming, queue="unschedulable", event="ScheduleAttemptFailure") >= 2
    assert during.value("scheduler_unschedulable_pods", plugin="NodeResourcesFit") == 1
    assert page.value("rest_client_requests_total", code="201", method="POST") >= 11
    assert page.value("rest_client_request_duration_seconds_count", verb="GET") > 10


def check_form(family: Metric, upstream: Upstream) -> None:
    bounds = set()
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        assert sample.labels.keys() - {"le"} == upstream.labels, sample
        if sample.name.endswith("_bucket"):
            bounds.add(float(sample.labels["le"]))
    if bounds:
        assert sorted(bounds)[:-1] == [*map(float, upstream.buckets)], family.name


class Sulky(FilterPlugin):
    """Fails whenever it is asked."""

    name: ClassVar[str] = "Sulky"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        raise RuntimeError("not today")


def sulky(failures: int) -> str:
    return (
        f"{KUBE}profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: Sulky}}]}}}}}}]\n---\n{OWN}"
        f"plugins: [{{name: Sulky, circuitBreaker: {{failures: {failures}, openFor: 1h}}}}]\n"
    )


async def test_open_circuit_metric_ends_when_it_closes(tmp_path: Path) -> None:
    metrics, labels = Metrics(), {"plugin": "Sulky", "profile": "default-scheduler"}
    async with (
        world(tmp_path, nodes=1) as w,
        shown(metrics) as health,
        w.daemon(sulky(1), Sulky, metrics=metrics) as daemon,
    ):

        async def circuits() -> list[tuple[dict[str, str], float]]:
            family = (await page_of(health)).families["asched_plugin_circuit_open"]
            return [(sample.labels, sample.value) for sample in family.samples]

        assert await circuits() == [(labels, 0.0)]
        w.add_pod("p")
        await w.until(lambda: "not today" in w.message("p"))
        assert await circuits() == [(labels, 1.0)]
        # Another configuration closes it.
        await daemon.apply_config(parse(sulky(9), "test", registry_with(Sulky)))
        assert await circuits() == [(labels, 0.0)]


async def test_own_metrics(tmp_path: Path) -> None:
    metrics = Metrics()
    async with world(tmp_path, nodes=1) as w, shown(metrics) as health:
        metrics.watch_journal_file(w.journal)
        async with w.daemon(metrics=metrics) as daemon:
            w.add_pods(5, "p")
            await w.until(lambda: not w.unbound())
            during = await page_of(health)
            with anyio.fail_after(TIMEOUT_S):
                while during.value("asched_reflector_events_total", resource="pods") < 5:
                    during = await page_of(health)
        page = await page_of(health)
    turns = daemon.engine.stats.turns
    assert page.value("asched_turn_duration_seconds_count") == turns
    assert page.value("asched_journal_records") == daemon.engine.stats.records
    assert page.value("asched_journal_file_bytes", file="database") == w.journal.stat().st_size
    assert during.value("asched_reflector_synced", resource="pods") == 1
    assert page.value("asched_events_total", outcome="sent") == 5
    assert page.value("asched_events_queue_length") == 0
    assert page.value("asched_effects_under_way") == 0
    assert during.value("asched_tasks") > 5
    assert page.value("asched_build_info") == 1


async def test_series_count_is_independent_of_pods(tmp_path: Path) -> None:
    metrics = every_cycle()
    async with (
        world(tmp_path, nodes=3) as w,
        shown(metrics) as health,
        w.daemon(metrics=metrics),
    ):
        for wave in ("first", "second"):
            w.add_pods(12, wave)
            await w.until(lambda: not w.unbound())
            page = await page_of(health)
    values = {value for _, labels in page.series() for _, value in labels}
    grows = ("first", "second", "n0", "n1", "n2")
    assert not [value for value in values if value.startswith(grows)]
    uids = {pod["metadata"]["uid"] for pod in w.cluster.list("pods")}
    assert values.isdisjoint(uids)


class Hold(PermitPlugin):
    """Holds every pod for a moment, and lets none go."""

    name: ClassVar[str] = "Hold"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 0.05)


async def test_permit_wait_duration(tmp_path: Path) -> None:
    config = (
        f"{KUBE}profiles:\n- schedulerName: default-scheduler\n"
        "  plugins: {permit: {enabled: [{name: Hold}]}}\n"
    )
    metrics = Metrics()
    async with world(tmp_path, nodes=1) as w, shown(metrics) as health:
        async with w.daemon(config, Hold, metrics=metrics):
            w.add_pod("p")
            await w.until(lambda: "timeout" in w.message("p"))
        page = await page_of(health)
    held = "scheduler_permit_wait_duration_seconds"
    assert page.value(f"{held}_count", result="Unschedulable") >= 1
    assert page.value(f"{held}_sum") >= 0.05


def test_process_metrics_need_no_proc_stat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As under systemd's ``ProcSubset=pid``, which leaves /proc/self alone; and without any
    /proc."""
    registry = CollectorRegistry()
    registry.register(SourceCollector(process_metrics))
    value = registry.get_sample_value
    assert (value("process_resident_memory_bytes") or 0) > 1e6
    assert (value("process_open_fds") or 0) > 2
    started_s, cpu_s = value("process_start_time_seconds"), value("process_cpu_seconds_total")
    assert started_s is not None
    assert 1.6e9 < started_s < 1e10
    assert cpu_s is not None
    assert cpu_s > 0
    assert value("asched_tasks") is None  # there is no event loop here
    monkeypatch.setattr("asched.daemon.telemetry.metrics._PROC", tmp_path / "none")
    assert value("process_cpu_seconds_total") is not None
    assert value("process_resident_memory_bytes") is None


def test_metrics_of_limits() -> None:
    flooded = Flooded()
    flooded.patch(200)
    flooded.core.apply(PodQuarantined("default/loud", "pod-loud"))
    flooded.core.state.guards.budgets.charge("default", 10**9, flooded.now_ns)
    metrics = Metrics()
    metrics.watch(flooded.core.state, lambda: ())
    metrics.watch_held_updates(flooded.core.held_updates)
    value = metrics.registry.get_sample_value
    assert value("asched_pods_quarantined") == 1
    assert value("asched_attempt_budget_namespaces") == 1
    assert value("asched_journal_budget_namespaces") == value("asched_updates_held") == 1
    deferred = value("asched_updates_deferred_total")
    assert deferred is not None
    assert deferred > 50


def test_inbox_age() -> None:
    now_ns = 0
    inbox = Inbox(monotonic_ns=lambda: now_ns)
    node = Node(metadata=ObjectMeta(name="n"))
    assert inbox.oldest_age_s == 0
    inbox.put_changes((Upserted(Resource.NODES, node), Deleted(Resource.NODES, node)))
    now_ns = 2_000_000_000
    inbox.put_changes((Upserted(Resource.NODES, node),))
    now_ns = 3_000_000_000
    assert inbox.oldest_age_s == 3.0
    inbox.next_change()
    assert inbox.oldest_age_s == 3.0
    inbox.next_change()
    assert inbox.oldest_age_s == 1.0
    inbox.next_change()
    assert inbox.oldest_age_s == 0


def test_buckets_equal_those_of_go_client() -> None:
    assert exponential_buckets(0.001, 2, 3) == (0.001, 0.002, 0.004)
    assert exponential_buckets(0.00001, 1.5, 3) == (0.00001, 0.000015, 0.0000225)
