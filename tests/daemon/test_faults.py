"""Faults of the API server delay pods, but every pod is scheduled in the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from asched.apiserver.faults import Faults
from asched.journal import open_journal
from asched.state.records import Assigned, BindFailed
from tests.daemon.world import World, world

BINDING = "pods/binding"


def conflicts(faults: Faults) -> None:
    faults.respond(409, count=3, resource=BINDING)


def bindings_without_response(faults: Faults) -> None:
    faults.drop(count=5, resource=BINDING, after_effect=True)


def lost_bindings(faults: Faults) -> None:
    faults.drop(count=5, resource=BINDING)


def too_many_requests(faults: Faults) -> None:
    faults.respond(429, count=5, resource=BINDING, retry_after_s=1)


def server_errors(faults: Faults) -> None:
    faults.respond(500, count=5, resource=BINDING)
    faults.respond(503, count=3, verb="list")
    faults.respond(500, count=3, verb="watch")


def unknown_outcome_for_long(faults: Faults) -> None:
    faults.drop(count=3, resource=BINDING, after_effect=True)
    faults.drop(count=12, verb="get", resource="pods")


def short_watches(faults: Faults) -> None:
    faults.watch_closes_after_events = 1


def malformed_lines(faults: Faults) -> None:
    faults.malform_watch_lines(20)


@pytest.mark.parametrize(
    "fault",
    [
        conflicts,
        bindings_without_response,
        lost_bindings,
        too_many_requests,
        server_errors,
        unknown_outcome_for_long,
        short_watches,
        malformed_lines,
    ],
)
async def test_fault_only_delays_scheduling(
    tmp_path: Path, fault: Callable[[Faults], None]
) -> None:
    async with world(tmp_path, nodes=3) as w:
        fault(w.faults)
        async with w.daemon():
            w.add_pods(20, "p")
            await w.until(lambda: not w.unbound())
            w.cluster.delete("pods", "p-0", namespace="default", grace_period_s=0)
            w.add_pod("late", "2")
            await w.until(lambda: not w.unbound())
        assert fault is short_watches or w.faults.injected > 0
        await check_history(w)


async def check_history(w: World) -> None:
    """A pod is assigned again only after its earlier binding failed."""
    open_decisions: dict[str, str] = {}
    async with open_journal(str(w.journal), read_only=True) as store:
        async for stored in store.read():
            match stored.record:
                case Assigned(uid=uid, node=node):
                    assert uid not in open_decisions
                    open_decisions[uid] = node
                case BindFailed(uid=uid, node=node):
                    assert open_decisions.pop(uid) == node
    alive = {p["metadata"]["uid"] for p in w.cluster.list("pods")}
    for uid in alive & open_decisions.keys():
        assert w.placements.node_of[uid] == open_decisions[uid]


async def test_pod_bound_by_another_scheduler_is_accepted(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:

        def bind_first(verb: str, resource: str) -> None:
            if resource == BINDING and w.unbound() == ["p"]:
                w.cluster.bind("default", "p", "n0" if decided() == "n1" else "n1")

        def decided() -> str:
            return daemon.cluster.pods["default/p"].node

        w.faults.on_request = bind_first
        async with w.daemon() as daemon:
            w.add_pod("p")
            await w.until(lambda: daemon.engine.stats.assigned == 1 and not w.unbound())
            # When another pod is bound, the outcome of the first binding was handled.
            w.add_pod("next")
            await w.until(lambda: not w.unbound())
        assert daemon.cluster.pods["default/p"].node == w.node_of("p")
        assert w.condition("p")["status"] == "True"


async def test_pod_deleted_during_binding_releases_its_resources(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:

        def delete_first(verb: str, resource: str) -> None:
            if resource == BINDING and w.unbound() == ["deleted"]:
                w.cluster.delete("pods", "deleted", namespace="default", grace_period_s=0)
                w.add_pod("next", "800m")

        w.faults.on_request = delete_first
        async with w.daemon() as daemon:
            w.add_pod("deleted", "800m")
            await w.until(lambda: w.cluster.count("pods") == 1 and not w.unbound())
        assert w.placements.order == ["next"]
        assert daemon.cluster.pods.keys() == {"default/next"}


async def test_delayed_condition_is_not_written_after_binding(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.delay(2.0, verb="patch", resource="pods/status")
        async with w.daemon() as daemon:
            w.add_pod("big", "3")
            await w.until(lambda: w.faults.injected == 1)
            w.add_node("large", cpu="4")  # decided after the backoff of 1 s
            await w.until(lambda: w.node_of("big") == "large")
            assert daemon.engine.stats.assigned == 1
        assert w.condition("big")["status"] == "True"


async def test_expired_watch_lists_again(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, w.daemon() as daemon:
        w.add_pods(5, "p")
        await w.until(lambda: not w.unbound())
        pods = next(r for r in daemon.watch.reflectors if r.resource.plural == "pods")
        w.faults.on_request = lambda verb, resource: w.touch()
        for wave in range(2):
            lists = pods.counts.lists
            # Without a pause, so that only a list contains the changes.
            w.cluster.delete("pods", f"p-{wave}", namespace="default", grace_period_s=0)
            w.add_pod(f"new-{wave}")
            w.cluster.expire_history()
            w.faults.watch_closes_after_events = 1
            await w.until(lambda lists=lists: pods.counts.lists > lists)  # type: ignore[misc]
            w.faults.watch_closes_after_events = None
            await w.until(lambda: not w.unbound())
        assert {key.partition("/")[2] for key in daemon.cluster.pods} == {
            pod["metadata"]["name"] for pod in w.cluster.list("pods")
        }


async def test_scheduling_continues_after_outage(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, w.daemon() as daemon:
        w.add_pods(5, "p")
        await w.until(lambda: not w.unbound())
        pods = next(r for r in daemon.watch.reflectors if r.resource.plural == "pods")
        async with w.outage():
            w.add_pods(5, "q")
            while not pods.counts.failures:
                await anyio.wait_all_tasks_blocked()
        await w.until(lambda: not w.unbound())
    assert daemon.engine.stats.bound == 10


async def test_combined_faults_only_delay_scheduling(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with world(tmp_path, nodes=5) as w, w.daemon():
        w.faults.watch_closes_after_events = 7
        for wave in range(6):
            for code in (409, 429, 500, 503):
                w.faults.respond(code, count=chance.randint(0, 2), resource=BINDING)
            w.faults.drop(count=chance.randint(0, 3), after_effect=chance.random() < 0.5)
            w.faults.drop(count=chance.randint(0, 3), resource=BINDING, after_effect=True)
            w.faults.malform_watch_lines(chance.randint(0, 3))
            if wave % 2:
                w.cluster.expire_history()
            w.add_pods(20, f"wave-{wave}")
            bound = [
                p["metadata"]["name"] for p in w.cluster.list("pods", fields="spec.nodeName!=")
            ]
            for name in chance.sample(bound, len(bound) // 3):
                w.cluster.delete("pods", name, namespace="default", grace_period_s=0)
            goal = len(w.placements.order) + 10
            await w.until(lambda goal=goal: len(w.placements.order) >= goal)  # type: ignore[misc]
        await w.until(lambda: not w.unbound())
    await check_history(w)
