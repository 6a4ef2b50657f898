"""The daemon with an extender: results, and isolation of its failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from asched.kube.extenders import MAX_CONCURRENT_CALLS
from asched.state.records import (
    Assigned,
    AttemptFailed,
    ExtenderCallFailed,
    ExtenderCallRequested,
    ExtenderFiltered,
    ExtenderPrioritized,
    Rejected,
)
from tests.daemon.world import world
from tests.extenders.replay import records_of, replayed
from tests.extenders.service import Service, config_of, names_of, serving

FILTER = {"filterVerb": "filter"}


def of(records: list[Any], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


async def test_filter_keeps_passed_nodes(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=4) as w:
        service.pass_only("n2")
        async with w.daemon(service.config(**FILTER)):
            w.add_pods(3, "p")
            await w.until(lambda: not w.unbound())
        assert {w.node_of(f"p-{i}") for i in range(3)} == {"n2"}
        assert sorted(service.pods_asked("filter")) == ["p-0", "p-1", "p-2"]
        (question, *_) = service.asked("filter")
        assert question["Nodes"] is None
        assert sorted(question["NodeNames"]) == ["n0", "n1", "n2", "n3"]
        decisions = await replayed(w)
        assert [len(of(decisions, kind)) for kind in (ExtenderCallRequested, Assigned)] == [3, 3]
        assert {decision.attempt for decision in of(decisions, Assigned)} == {1}


async def test_rejections_are_counted_and_any_event_requeues(
    tmp_path: Path,
) -> None:
    async with serving() as service, world(tmp_path, nodes=3) as w:
        w.add_node("cordoned")
        w.cluster.patch("nodes", "cordoned", {"spec": {"unschedulable": True}})
        service.answer(
            "filter",
            lambda question: {
                "failedNodes": {"n0": "no licence", "n1": "no licence"},
                "failedAndUnresolvableNodes": {"n1": "wrong country"},
                "nodenames": [],
            },
        )
        async with w.daemon(service.config(**FILTER)):
            w.add_pod("p")
            await w.until(lambda: bool(w.message("p")))
            assert w.message("p").startswith(
                "0/4 nodes are available: 1 no licence, 1 node(s) were unschedulable,"
                " 1 wrong country."
            )
            assert w.condition("p")["reason"] == "Unschedulable"
            service.pass_only("n0")
            # Extenders have no queueing hints, so any event requeues, as in kube-scheduler.
            w.cluster.create("namespaces", {"metadata": {"name": "unrelated"}})
            await w.until(lambda: w.node_of("p") == "n0")
        (rejected,) = of(await replayed(w), Rejected)
        assert rejected.unschedulable_plugins == ("Extender", "NodeUnschedulable")


async def test_scores_are_scaled_and_weighted(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=3) as w:
        service.score(n1=10, n2=3, unknown=10)
        config = service.config(prioritizeVerb="prioritize", weight=7)
        async with w.daemon(config):
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
        assert w.node_of("p") == "n1"
        (assigned,) = of(await replayed(w), Assigned)
        # The nodes differ only in the extender's score: 10 * 7 * (100 / 10).
        async with w.daemon():
            w.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
            w.add_pod("alone")
            await w.until(lambda: bool(w.node_of("alone")))
        alone = of(await records_of(w), Assigned)[-1]
        assert assigned.score - alone.score == 700
        assert (assigned.ties, alone.ties) == (1, 3)


async def test_single_feasible_node_is_not_scored(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=3) as w:
        service.pass_only("n1")
        config = service.config(prioritizeVerb="prioritize", weight=1, **FILTER)
        async with w.daemon(config):
            w.add_pod("p")
            await w.until(lambda: w.node_of("p") == "n1")
        assert service.asked("prioritize") == []


async def test_filters_run_in_sequence_and_scores_concurrently(
    tmp_path: Path,
) -> None:
    async with serving() as first, serving() as second, world(tmp_path, nodes=4) as w:
        first.pass_only("n1", "n2", "n3")
        second.pass_only("n0", "n2", "n3")
        first.score(n2=4, n3=5)
        second.score(n2=4, n3=1)
        verbs = {"nodeCacheCapable": True, "prioritizeVerb": "prioritize", "weight": 1} | FILTER
        config = config_of(
            # Ignorable extenders are called last.
            {"urlPrefix": second.url, "ignorable": True} | verbs,
            {"urlPrefix": first.url} | verbs,
        )
        async with w.daemon(config):
            w.add_pod("p")
            await w.until(lambda: w.node_of("p") == "n2")
        assert sorted(names_of(first.asked("filter")[0])) == ["n0", "n1", "n2", "n3"]
        assert sorted(names_of(second.asked("filter")[0])) == ["n1", "n2", "n3"]
        for service in (first, second):
            assert sorted(names_of(service.asked("prioritize")[0])) == ["n2", "n3"]
        asked = of(await replayed(w), ExtenderCallRequested)
        assert [question.extenders for question in asked] == [(0,), (1,), (0, 1)]


async def test_managed_resources_select_pods(
    tmp_path: Path,
) -> None:
    async with serving() as service, world(tmp_path, nodes=3) as w:
        service.pass_only("n1")
        config = service.config(
            managedResources=[{"name": "example.com/slots", "ignoredByScheduler": True}], **FILTER
        )
        slots = {"requests": {"cpu": "100m", "example.com/slots": "2"}}
        slots["limits"] = {"example.com/slots": "2"}
        async with w.daemon(config):
            w.add_pod("plain")
            w.add_pod("managed", containers=[{"name": "c", "image": "app", "resources": slots}])
            await w.until(lambda: not w.unbound())
        # The pod is placed though no node has the resource: only the extender counts it.
        assert w.node_of("managed") == "n1"
        assert service.pods_asked("filter") == ["managed"]


async def test_extender_without_cache_receives_nodes(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path) as w:
        w.add_node("n0", cpu="4", disk="ssd")
        w.add_node("n1", cpu="4")
        service.answer(
            "filter", lambda question: {"Nodes": {"items": question["Nodes"]["items"][:1]}}
        )
        async with w.daemon(service.config(nodeCacheCapable=False, **FILTER)):
            w.add_pod("p", labels={"app": "x"})
            await w.until(lambda: not w.unbound())
        (question,) = service.asked("filter")
        assert question["NodeNames"] is None
        sent = {node["metadata"]["name"]: node for node in question["Nodes"]["items"]}
        assert sent["n0"]["metadata"]["labels"]["disk"] == "ssd"
        assert sent["n0"]["status"]["allocatable"]["cpu"] == "4"
        assert w.node_of("p") == question["Nodes"]["items"][0]["metadata"]["name"]
        pod = question["Pod"]
        assert pod["metadata"]["labels"] == {"app": "x"}
        assert pod["metadata"]["uid"] == w.pod("p")["metadata"]["uid"]
        # A decoder in Go needs defaults that the model omits.
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m"}


def down(service: Service) -> None:
    service.answers.clear()


def garbage(service: Service) -> None:
    service.answer("filter", lambda _: b'{"NodeNames": "all of them"}')


def unknown_node(service: Service) -> None:
    service.answer("filter", lambda _: {"NodeNames": ["nowhere"]})


def own_error(service: Service) -> None:
    service.answer("filter", lambda _: {"NodeNames": ["n0"], "Error": "out of order"})


def redirect(service: Service) -> None:
    elsewhere = {"Location": f"{service.url}/elsewhere"}
    service.answer("filter", lambda _: web.Response(status=307, headers=elsewhere))


def hanging(service: Service) -> None:
    async def hang(_: Any) -> Any:
        await anyio.sleep_forever()

    service.answers["filter"] = hang


def timeout_for(trouble: Any) -> str:
    """Short only for a request that never ends: on a busy machine others take their time."""
    return "50ms" if trouble is hanging else "30s"


TROUBLES = [
    (down, "failed filter with extender at URL {url}/filter, code 404"),
    (garbage, "cannot decode the response of {url}/filter: Expected `array`, got `str`"),
    (
        unknown_node,
        (
            'extender "{url}" claims a filtered node "nowhere" which is not found in the input'
            " node list"
        ),
    ),
    (own_error, "out of order"),
    (redirect, "failed filter with extender at URL {url}/filter, code 307"),
    (hanging, 'Post "{url}/filter": no response within 0.05 s'),
]


@pytest.mark.parametrize(("trouble", "message"), TROUBLES)
async def test_failed_extender_fails_attempt(tmp_path: Path, trouble: Any, message: str) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:
        trouble(service)
        async with w.daemon(service.config(httpTimeout=timeout_for(trouble), **FILTER)):
            w.add_pod("p")
            await w.until(lambda: bool(w.message("p")))
            assert w.message("p") == message.format(url=service.url)
            assert w.condition("p")["reason"] == "SchedulerError"
            # After its backoff the pod is retried with the repaired extender.
            service.pass_only("n1")
            await w.until(lambda: w.node_of("p") == "n1")
        decisions = await replayed(w)
        failures = of(decisions, AttemptFailed)
        assert {failure.plugin for failure in failures} == {"Extender"}
        assert [failure.attempt for failure in failures] == [*range(1, len(failures) + 1)]
        assert service.asked("elsewhere") == []


@pytest.mark.parametrize(("trouble", "message"), TROUBLES)
async def test_failed_ignorable_extender_is_skipped(
    tmp_path: Path, trouble: Any, message: str
) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:
        trouble(service)
        config = service.config(httpTimeout=timeout_for(trouble), ignorable=True, **FILTER)
        async with w.daemon(config):
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
        (failure,) = of(await records_of(w), ExtenderCallFailed)
        assert failure.message == message.format(url=service.url)
        await replayed(w)


async def test_unreachable_extender(tmp_path: Path) -> None:
    async with serving() as service:
        config = service.config(**FILTER)
    async with world(tmp_path, nodes=2) as w, w.daemon(config):
        w.add_pod("p")
        await w.until(lambda: bool(w.message("p")))
        assert w.message("p").startswith(f'Post "{service.url}/filter": Cannot connect to host')


async def test_failed_prioritize_is_ignored(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:
        service.answer("prioritize", lambda _: [{"Host": "n0", "Score": "ten"}])
        async with w.daemon(service.config(prioritizeVerb="prioritize", weight=1)):
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
        (failure,) = of(await records_of(w), ExtenderCallFailed)
        assert "cannot decode" in failure.message


async def test_slow_extender_delays_only_its_pods(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=4, cpu="64") as w:
        release = service.answer_when_released("filter", lambda q: {"NodeNames": names_of(q)})
        service.on_question = w.touch
        config = service.config(managedResources=[{"name": "example.com/slots"}], **FILTER)
        resources = {"requests": {"cpu": "100m", "example.com/slots": "1"}}
        container = {"name": "c", "image": "app", "resources": resources}
        for name in ("n0", "n1", "n2", "n3"):
            w.cluster.patch(
                "nodes", name, {"status": {"allocatable": {"example.com/slots": "99"}}},
                subresource="status",
            )  # fmt: skip
        async with w.daemon(config) as daemon:
            for number in range(20):
                w.add_pod(f"slow-{number}", containers=[container])
            w.add_pods(60, "quick")
            await w.until(lambda: len(w.unbound()) == 20)
            assert all(name.startswith("slow") for name in w.unbound())
            assert len(daemon.cluster.pending_evaluations) == 20
            release.set()
            await w.until(lambda: not w.unbound())
            assert not daemon.cluster.pending_evaluations
        await replayed(w)


async def test_results_apply_to_feasible_nodes_only(tmp_path: Path) -> None:
    """While the extender thinks, the node that it will name fills up: it is asked about the
    rest."""
    async with serving() as service, world(tmp_path, nodes=2, cpu="1") as w:
        release = service.answer_when_released(
            "filter", lambda q: {"NodeNames": [n for n in names_of(q) if n != "n1"]}
        )
        service.on_question = w.touch
        config = service.config(managedResources=[{"name": "example.com/slots"}], **FILTER)
        config = config.replace(
            '"name": "example.com/slots"',
            '"name": "example.com/slots", "ignoredByScheduler": true',
        )
        resources = {"requests": {"cpu": "800m", "example.com/slots": "1"}}
        async with w.daemon(config):
            w.add_pod("slow", containers=[{"name": "c", "image": "a", "resources": resources}])
            await w.until(lambda: bool(service.questions))
            w.add_pod("quick", "800m", nodeSelector={"kubernetes.io/hostname": "n0"})
            await w.until(lambda: w.node_of("quick") == "n0")
            w.add_node("n2", cpu="1")
            w.add_pod("after", "100m", nodeSelector={"kubernetes.io/hostname": "n2"})
            await w.until(lambda: w.node_of("after") == "n2")
            release.set()
            await w.until(lambda: w.node_of("slow") == "n2")
        assert [sorted(names_of(q)) for q in service.asked("filter")] == [["n0", "n1"], ["n2"]]
        await replayed(w)


async def test_crash_before_result_repeats_call(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=3) as w:
        hanging(service)
        service.on_question = w.touch
        w.add_pod("p")
        with anyio.CancelScope() as scope:
            async with w.daemon(service.config(**FILTER)):
                await w.until(lambda: bool(service.questions))
                scope.cancel()
        service.pass_only("n2")
        async with w.daemon(service.config(**FILTER)):
            await w.until(lambda: w.node_of("p") == "n2")
        decisions = await replayed(w)
        assert [type(decision) for decision in decisions] == [
            ExtenderCallRequested,
            ExtenderCallRequested,
            Assigned,
        ]
        assert {decision.attempt for decision in decisions} == {1}


async def test_stop_does_not_wait_for_extender(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=1) as w:
        hanging(service)
        service.on_question = w.touch
        with anyio.fail_after(60):
            async with w.daemon(service.config(httpTimeout="1h", **FILTER)):
                w.add_pod("p")
                await w.until(lambda: bool(service.questions))
        assert w.unbound() == ["p"]
        assert w.condition("p") == {}


async def test_slow_binder_delays_only_its_pods(tmp_path: Path) -> None:
    """Other pods are decided and bound while an extender binds slowly."""
    async with serving() as service, world(tmp_path, nodes=2, cpu="64") as w:

        def bind(question: Any) -> Any:
            w.cluster.bind(question["PodNamespace"], question["PodName"], question["Node"])
            return {}

        release = service.answer_when_released("bind", bind)
        service.on_question = w.touch
        managed = [{"name": "example.com/slots", "ignoredByScheduler": True}]
        resources = {"requests": {"cpu": "100m", "example.com/slots": "1"}}
        container = {"name": "c", "image": "app", "resources": resources}
        async with w.daemon(service.config(bindVerb="bind", managedResources=managed)):
            for number in range(20):
                w.add_pod(f"slow-{number}", containers=[container])
            # The limit of concurrent bindings is reached.
            await w.until(lambda: len(service.questions) == MAX_CONCURRENT_CALLS)
            w.add_pods(50, "quick")
            await w.until(lambda: all(name.startswith("slow") for name in w.unbound()))
            assert len(w.unbound()) == 20
            release.set()
            await w.until(lambda: not w.unbound())
        await replayed(w)


async def test_pod_deleted_during_call(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:
        release = service.answer_when_released("filter", lambda q: {"NodeNames": names_of(q)})
        service.on_question = w.touch
        async with w.daemon(service.config(**FILTER)) as daemon:
            w.add_pod("gone")
            await w.until(lambda: len(service.questions) == 1)
            w.cluster.delete("pods", "gone", namespace="default", grace_period_s=0)
            w.add_pod("stays")
            await w.until(lambda: len(service.questions) == 2)
            release.set()
            await w.until(lambda: not w.unbound())
            assert not daemon.cluster.pending_evaluations
        await replayed(w)


async def test_extender_binds_pods(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:

        def bind(question: Any) -> Any:
            w.cluster.bind(question["PodNamespace"], question["PodName"], question["Node"])
            return {}

        service.answer("bind", bind)
        w.faults.on_request = lambda verb, resource: created.append(resource)
        created: list[str] = []
        async with w.daemon(service.config(bindVerb="bind")):
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
        (question,) = service.asked("bind")
        assert question == {
            "PodName": "p",
            "PodNamespace": "default",
            "PodUID": w.pod("p")["metadata"]["uid"],
            "Node": w.node_of("p"),
        }
        assert "pods/binding" not in created


async def test_binding_rejected_by_extender_is_retried(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:
        service.answer("bind", lambda _: {"Error": "not today"})
        async with w.daemon(service.config(bindVerb="bind")):
            w.add_pod("p")
            await w.until(lambda: w.message("p") == "not today")
            assert w.condition("p")["reason"] == "SchedulerError"

            def bind(question: Any) -> Any:
                w.cluster.bind(question["PodNamespace"], question["PodName"], question["Node"])
                return {"Error": ""}

            service.answer("bind", bind)
            await w.until(lambda: not w.unbound())
        await replayed(w)


async def test_binding_succeeded_despite_extender_error(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:

        def bind(question: Any) -> Any:
            w.cluster.bind(question["PodNamespace"], question["PodName"], question["Node"])
            return web.Response(status=500)

        service.answer("bind", bind)
        async with w.daemon(service.config(bindVerb="bind")) as daemon:
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
        assert daemon.engine.stats.failed == 0
        assert len(service.asked("bind")) == 1
        assert w.condition("p").get("status") != "False"


async def test_failed_ignorable_binder_falls_back_to_plugins(tmp_path: Path) -> None:
    async with serving() as service, world(tmp_path, nodes=2) as w:
        async with w.daemon(service.config(bindVerb="bind", ignorable=True)):
            w.add_pod("p")
            await w.until(lambda: not w.unbound())
        assert len(service.asked("bind")) == 1


async def test_records_are_small(tmp_path: Path) -> None:
    """A request for many nodes is recorded as bits, not names."""
    async with serving() as service, world(tmp_path, nodes=300) as w:
        service.pass_only("n2", "n299")
        service.score(n2=1)
        config = service.config(prioritizeVerb="prioritize", weight=1, **FILTER)
        async with w.daemon(config):
            w.add_pod("p")
            await w.until(lambda: w.node_of("p") == "n2")
        records = await records_of(w)
        kinds = (ExtenderCallRequested, ExtenderFiltered, ExtenderPrioritized)
        from asched.journal.codec import CODEC

        sizes = [len(CODEC.encode(r).payload) for r in records if isinstance(r, kinds)]
        assert len(sizes) == 4
        assert max(sizes) < 400
        assert (
            json.loads(CODEC.encode(of(records, ExtenderCallRequested)[0]).payload)["verb"]
            == "filter"
        )
