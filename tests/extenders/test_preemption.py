"""Extenders in preemption: they can reject nodes and choose other victims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asched.state.records import ExtenderCallRequested, ExtenderPreemptionProcessed, Rejected
from tests.daemon.world import World, world
from tests.extenders.replay import records_of, replayed
from tests.extenders.service import Json, serving

PREEMPT = {"preemptVerb": "preempt"}


async def crowded(w: World, config: str) -> None:
    """Two full nodes of two pods each, of priority 1 and 2."""
    for value in (1, 2, 100):
        w.cluster.create(
            "priorityclasses.scheduling.k8s.io",
            {"metadata": {"name": f"p{value}"}, "value": value},
        )
    async with w.daemon(config):
        for name in ("n0", "n1"):
            w.add_node(name, cpu="1")
            for number in (1, 2):
                w.add_pod(
                    f"{name}-{number}", "500m", priorityClassName=f"p{number}",
                    terminationGracePeriodSeconds=0,
                    nodeSelector={"kubernetes.io/hostname": name},
                )  # fmt: skip
        await w.until(lambda: len(w.cluster.list("pods")) == 4 and not w.unbound())


def victims_of(question: Json) -> dict[str, set[str]]:
    """Names of victims by node, of a request with complete pods."""
    return {
        node: {pod["metadata"]["name"] for pod in victims["Pods"]}
        for node, victims in question["NodeNameToVictims"].items()
    }


def uid_of(w: World, name: str) -> str:
    uid: str = w.pod(name)["metadata"]["uid"]
    return uid


async def test_extender_selects_node_and_victims(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path) as w:
        config = service.config(nodeCacheCapable=False, **PREEMPT)
        await crowded(w, config)
        # On n1, and not the least important pod, which the scheduler would choose.
        uid = uid_of(w, "n1-2")
        service.answer(
            "preempt",
            lambda _: {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": uid}]}}},
        )
        async with w.daemon(config):
            w.add_pod("heir", "500m", priorityClassName="p100")
            await w.until(lambda: w.node_of("heir") == "n1")
        assert {p["metadata"]["name"] for p in w.cluster.list("pods")} == {
            "n0-1", "n0-2", "n1-1", "heir",
        }  # fmt: skip
        question = service.asked("preempt")[0]
        assert victims_of(question) == {"n0": {"n0-1"}, "n1": {"n1-1"}}
        assert question["NodeNameToMetaVictims"] is None
        decisions = await replayed(w)
        (asked,) = [d for d in decisions if isinstance(d, ExtenderCallRequested)]
        (rejected,) = [d for d in decisions if isinstance(d, Rejected)]
        assert rejected.attempt == asked.attempt == 1
        assert [victim.uid for victim in rejected.victims] == [uid]


async def test_extender_with_cache_receives_uids(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path) as w:
        await crowded(w, service.config(**PREEMPT))
        service.answer(
            "preempt",
            lambda question: {
                "nodeNameToMetaVictims": {"n0": question["NodeNameToMetaVictims"]["n0"]}
            },
        )
        uid = uid_of(w, "n0-1")
        async with w.daemon(service.config(**PREEMPT)):
            w.add_pod("heir", "500m", priorityClassName="p100")
            await w.until(lambda: w.node_of("heir") == "n0")
        question = service.asked("preempt")[0]
        assert question["NodeNameToVictims"] is None
        assert question["NodeNameToMetaVictims"]["n0"] == {
            "Pods": [{"UID": uid}],
            "NumPDBViolations": 0,
        }


async def test_extender_leaves_no_candidate(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path) as w:
        await crowded(w, service.config(**PREEMPT))
        service.answer("preempt", lambda _: {"NodeNameToMetaVictims": {}})
        async with w.daemon(service.config(**PREEMPT)):
            w.add_pod("heir", "500m", priorityClassName="p100")
            await w.until(lambda: bool(w.message("heir")))
        assert w.message("heir").endswith("preemption: no candidate node for preemption")
        assert len(w.cluster.list("pods")) == 5
        await replayed(w)


def stranger(_: Any) -> Json:
    return {"NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": "stranger"}]}}}


def no_victims(_: Any) -> Json:
    return {"NodeNameToMetaVictims": {"n0": {"Pods": []}}}


async def test_invalid_preemption_result_fails_preemption_only(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path) as w:
        await crowded(w, service.config(**PREEMPT))
        cases = {
            "heir-1": (
                stranger,
                (
                    f"extender: {service.url} claims to preempt pod (UID: stranger) on node: n0,"
                    " but the"
                    " pod is not found on that node"
                ),
            ),
            "heir-2": (no_victims, 'expected at least one victim pod on node "n0"'),
        }
        async with w.daemon(service.config(**PREEMPT)):
            for name, (answer, error) in cases.items():
                service.answer("preempt", answer)
                w.add_pod(name, "500m", priorityClassName="p100")
                await w.until(lambda name=name: bool(w.message(name)))  # type: ignore[misc]
                assert w.message(name) == (
                    f"0/2 nodes are available: 2 Insufficient cpu. preemption: {error}"
                )
                assert w.condition(name)["reason"] == "Unschedulable"
        await replayed(w)


async def test_failed_ignorable_extender_keeps_candidates(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path) as w:
        config = service.config(ignorable=True, **PREEMPT)
        await crowded(w, config)
        async with w.daemon(config):
            w.add_pod("heir", "500m", priorityClassName="p100")
            await w.until(lambda: bool(w.node_of("heir")))
        assert len(service.asked("preempt")) == 1
        assert not [r for r in await records_of(w) if isinstance(r, ExtenderPreemptionProcessed)]
        await replayed(w)
