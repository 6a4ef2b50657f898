"""The health endpoint over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from asched.config.settings import HealthSettings
from asched.daemon.telemetry.health import Check, Health, HealthAddressError
from asched.daemon.telemetry.metrics import Metrics
from tests.daemon.world import failed_checks, world

ANY_PORT = HealthSettings("127.0.0.1:0")


class Answer(NamedTuple):
    status: int
    text: str


@asynccontextmanager
async def serving(health: Health) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        health.serving(ANY_PORT),
        aiohttp.ClientSession(f"http://{health.address}") as session,
    ):
        yield session


async def get(session: aiohttp.ClientSession, path: str) -> Answer:
    async with session.get(path) as response:
        return Answer(response.status, await response.text())


async def test_endpoint_is_alive_but_not_ready_without_daemon() -> None:
    health = Health(CollectorRegistry())
    async with serving(health) as session:
        assert await get(session, "/livez") == (200, "ok")
        assert await get(session, "/healthz") == (200, "ok")
        starting = await get(session, "/readyz")
        assert starting == (
            503,
            "[+]ping ok\n[-]started failed: the journal is being folded\nreadyz check failed\n",
        )
        health.attach([Check("journal", lambda: ""), Check("caches", lambda: "")])
        assert await get(session, "/readyz") == (200, "ok")
        assert (await get(session, "/else")).status == 404
    assert health.address == ""


async def test_checks_respond_like_kubernetes_components() -> None:
    wrong = {"journal": "", "engine": ""}
    health = Health(CollectorRegistry())
    health.attach(
        [Check("journal", lambda: wrong["journal"])],
        alive=[Check("engine", lambda: wrong["engine"])],
    )
    async with serving(health) as session:
        assert await get(session, "/readyz?verbose") == (
            200, "[+]ping ok\n[+]engine ok\n[+]journal ok\nreadyz check passed\n",
        )  # fmt: skip
        wrong["journal"] = "the disk is full"
        assert await get(session, "/readyz") == (
            503,
            "[+]ping ok\n[+]engine ok\n[-]journal failed: the disk is full\nreadyz check failed\n",
        )
        assert await get(session, "/readyz?exclude=journal") == (200, "ok")
        excluded = await get(session, "/readyz?verbose&exclude=journal")
        assert "[+]journal excluded: ok\n" in excluded.text
        assert await get(session, "/readyz/engine") == (200, "ok")
        assert (await get(session, "/readyz/journal")).status == 503
        assert (await get(session, "/readyz/nothing")).status == 404
        # What a restart does not mend does not make it one.
        assert await get(session, "/livez") == (200, "ok")
        assert (await get(session, "/livez/journal")).status == 404
        wrong["engine"] = "a turn of it hangs"
        assert (await get(session, "/livez?verbose")) == (
            503, "[+]ping ok\n[-]engine failed: a turn of it hangs\nlivez check failed\n",
        )  # fmt: skip
        assert (await get(session, "/healthz")).status == 503


async def test_empty_address_serves_nothing() -> None:
    health = Health(CollectorRegistry())
    async with health.serving(HealthSettings("")):
        assert health.address == ""


async def test_unavailable_address_is_one_line() -> None:
    first, second = Health(CollectorRegistry()), Health(CollectorRegistry())
    async with first.serving(ANY_PORT):
        with pytest.raises(HealthAddressError, match="Address already in use"):
            async with second.serving(HealthSettings(first.address)):
                pytest.fail("both serve it")
    with pytest.raises(HealthAddressError, match=r"cannot serve health on nowhere\.invalid:80: "):
        async with second.serving(HealthSettings("nowhere.invalid:80")):
            pytest.fail("it serves an address that there is not")


async def samples(session: aiohttp.ClientSession) -> dict[str, float]:
    """All samples, as ``name{label=value,...}``, labels sorted."""
    text = (await get(session, "/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def test_metrics_of_running_daemon(tmp_path: Path) -> None:
    metrics = Metrics()
    health = Health(metrics.registry)
    async with world(tmp_path, nodes=2) as w, serving(health) as session:
        w.faults.respond(500, count=1, verb="watch", resource="pods")
        async with w.daemon(metrics=metrics) as daemon:
            alive = [Check("engine", lambda: "stuck" if daemon.is_stuck() else "")]
            health.attach(daemon.checks(), alive=alive)
            w.add_pods(10, "p")
            w.add_pod("big", "100")
            w.add_pod("gated", schedulingGates=[{"name": "example.com/gate"}])
            await w.until(
                lambda: sorted(w.unbound()) == ["big", "gated"] and w.message("big") != ""
            )
            assert await get(session, "/readyz") == (200, "ok")
            shown = await samples(session)
        after = await samples(session)
    attempts = "scheduler_schedule_attempts_total{profile=default-scheduler,result=%s}"
    assert after[attempts % "scheduled"] == 10
    assert shown[attempts % "unschedulable"] == 1
    assert shown["scheduler_pending_pods{queue=unschedulable}"] == 1
    assert shown["scheduler_pending_pods{queue=gated}"] == 1
    assert shown["scheduler_pending_pods{queue=active}"] == 0
    assert shown["scheduler_cache_size{type=nodes}"] == 2
    assert shown["scheduler_cache_size{type=pods}"] == 12
    assert shown["scheduler_scheduling_algorithm_duration_seconds_count"] == 11
    duration = "scheduler_scheduling_attempt_duration_seconds_count"
    assert after[duration + "{profile=default-scheduler,result=scheduled}"] == 10
    assert after["asched_journal_batch_records_sum"] == daemon.engine.stats.records
    assert after["asched_journal_append_duration_seconds_count"] == daemon.engine.stats.turns
    assert after["asched_journal_append_failures_total"] == 0
    assert shown["asched_reflector_lists_total{resource=pods}"] == 1
    assert shown["asched_reflector_watch_failures_total{resource=pods}"] == 1


async def test_not_ready_without_api_server(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.respond(500, count=10_000, verb="list", resource="nodes")
        async with w.daemon() as daemon:
            await w.until(lambda: w.faults.injected > 0)
            assert failed_checks(daemon.checks())[0].startswith("not listed yet: ")
            assert "nodes" in failed_checks(daemon.checks())[0]
            w.faults.clear()
            await daemon.engine.synced.wait()
            assert failed_checks(daemon.checks()) == []


async def test_other_port_is_served_if_default_is_in_use() -> None:
    first, second = Health(CollectorRegistry()), Health(CollectorRegistry())
    async with first.serving(HealthSettings()), second.serving(HealthSettings()):
        assert first.address != second.address
        for health in (first, second):
            async with aiohttp.ClientSession(f"http://{health.address}") as session:
                assert await get(session, "/livez") == (200, "ok")
