"""Whatever the API server does, in the end every pod has its place and nothing is lost."""

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


def bindings_that_succeed_unheard(faults: Faults) -> None:
    faults.drop(count=5, resource=BINDING, after_effect=True)


def bindings_that_never_arrive(faults: Faults) -> None:
    faults.drop(count=5, resource=BINDING)


def too_many_requests(faults: Faults) -> None:
    faults.respond(429, count=5, resource=BINDING, retry_after_s=1)


def server_errors(faults: Faults) -> None:
    faults.respond(500, count=5, resource=BINDING)
    faults.respond(503, count=3, verb="list")
    faults.respond(500, count=3, verb="watch")


def fate_unknown_for_long(faults: Faults) -> None:
    faults.drop(count=3, resource=BINDING, after_effect=True)
    faults.drop(count=12, verb="get", resource="pods")


def short_streams(faults: Faults) -> None:
    faults.close_watches_after(1)


def garbled_lines(faults: Faults) -> None:
    faults.malform_watch_lines(20)


@pytest.mark.parametrize(
    "fault",
    [
        conflicts,
        bindings_that_succeed_unheard,
        bindings_that_never_arrive,
        too_many_requests,
        server_errors,
        fate_unknown_for_long,
        short_streams,
        garbled_lines,
    ],
)
async def test_a_fault_costs_time_only(tmp_path: Path, fault: Callable[[Faults], None]) -> None:
    async with world(tmp_path, nodes=3) as w:
        fault(w.faults)
        async with w.daemon():
            w.add_pods(20, "p")
            await w.until(lambda: not w.unbound())
            w.cluster.delete("pods", "p-0", namespace="default", grace_period_s=0)
            w.add_pod("late", "2")
            await w.until(lambda: not w.unbound())
        assert fault is short_streams or w.faults.injected > 0
        await check_history(w)


async def check_history(w: World) -> None:
    """No pod was assigned again without its earlier binding having failed."""
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


async def test_who_is_beaten_to_a_pod_leaves_it_alone(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w:

        def be_faster(verb: str, resource: str) -> None:
            if resource == BINDING and w.unbound() == ["p"]:
                w.cluster.bind("default", "p", "n0" if decided() == "n1" else "n1")

        def decided() -> str:
            return daemon.cluster.pods["default/p"].node

        w.faults.on_request = be_faster
        async with w.daemon() as daemon:
            w.add_pod("p")
            await w.until(lambda: daemon.engine.stats.assigned == 1 and not w.unbound())
            # One more pod, so that what follows the lost race has happened when it is bound.
            w.add_pod("next")
            await w.until(lambda: not w.unbound())
        assert daemon.cluster.pods["default/p"].node == w.node_of("p")
        assert w.condition("p")["status"] == "True"


async def test_a_pod_deleted_while_it_is_being_bound_gives_its_room_back(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:

        def delete_first(verb: str, resource: str) -> None:
            if resource == BINDING and w.unbound() == ["doomed"]:
                w.cluster.delete("pods", "doomed", namespace="default", grace_period_s=0)
                w.add_pod("next", "800m")

        w.faults.on_request = delete_first
        async with w.daemon() as daemon:
            w.add_pod("doomed", "800m")
            await w.until(lambda: w.cluster.count("pods") == 1 and not w.unbound())
        assert w.placements.order == ["next"]
        assert daemon.cluster.pods.keys() == {"default/next"}


async def test_a_late_condition_does_not_come_after_the_binding(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.delay(2.0, verb="patch", resource="pods/status")
        async with w.daemon() as daemon:
            w.add_pod("big", "3")
            await w.until(lambda: w.faults.injected == 1)
            w.add_node("large", cpu="4")  # decided when the backoff of 1 s is over
            await w.until(lambda: w.node_of("big") == "large")
            assert daemon.engine.stats.assigned == 1
        assert w.condition("big")["status"] == "True"


async def test_expired_watches_list_again(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, w.daemon() as daemon:
        w.add_pods(5, "p")
        await w.until(lambda: not w.unbound())
        pods = next(r for r in daemon.watch.reflectors if r.resource.plural == "pods")
        w.faults.on_request = lambda verb, resource: w.touch()
        for wave in range(2):
            lists = pods.counts.lists
            # All in one moment, so that what happens is only in a list, not in a stream.
            w.cluster.delete("pods", f"p-{wave}", namespace="default", grace_period_s=0)
            w.add_pod(f"new-{wave}")
            w.cluster.expire_history()
            w.faults.close_watches_after(1)
            await w.until(lambda lists=lists: pods.counts.lists > lists)  # type: ignore[misc]
            w.faults.close_watches_after(None)
            await w.until(lambda: not w.unbound())
        assert {key.partition("/")[2] for key in daemon.cluster.pods} == {
            pod["metadata"]["name"] for pod in w.cluster.list("pods")
        }


async def test_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
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


async def test_all_at_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with world(tmp_path, nodes=5) as w, w.daemon():
        w.faults.close_watches_after(7)
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
