"""List and watch with a scripted server, including misbehavior."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from asched.core.inputs import Deleted, Listed, Upserted
from asched.kube import paged_lists, response_parser
from asched.kube.paged_lists import PageSize
from asched.kube.reflector import ClusterWatch, Reflector, ReflectorSettings
from asched.model.resources import Resource, WatchedResource
from tests.kube.harness import (
    TIMEOUT_S,
    Answer,
    Asked,
    ManualClock,
    Script,
    ScriptedServer,
    View,
    client_for,
    event_line,
    in_turn,
    json_bytes,
    listing,
    refusal,
    running,
)

HANG = Answer(body=[], hang=True)


def node(name: str, version: int, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}}


def added(name: str, version: int) -> bytes:
    return event_line("ADDED", node(name, version))


def modified(name: str, version: int) -> bytes:
    return event_line("MODIFIED", node(name, version))


def deleted(name: str, version: int) -> bytes:
    return event_line("DELETED", node(name, version))


def bookmark(version: int) -> bytes:
    return event_line("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


EXPIRED_EVENT = event_line(
    "ERROR", {"kind": "Status", "reason": "Expired", "message": "too old", "code": 410}
)


def lists_and_watches(lists: Script, watches: Script) -> Script:
    return lambda asked: watches(asked) if asked.is_watch else lists(asked)


class Scene:
    """A reflector of nodes, its server, its sink and its clock."""

    def __init__(
        self, server: ScriptedServer, clock: ManualClock, reflector: Reflector, view: View
    ):
        self.server = server
        self.clock = clock
        self.reflector = reflector
        self.view = view

    @property
    def names(self) -> set[str]:
        return self.view.names(self.reflector.resource)

    @property
    def watched_from(self) -> list[str]:
        return [asked.query["resourceVersion"] for asked in self.server.asked if asked.is_watch]

    @property
    def lists(self) -> list[Asked]:
        return [asked for asked in self.server.asked if not asked.is_watch]

    async def until(self, holds: Callable[[], bool]) -> None:
        await self.view.until(holds)


@asynccontextmanager
async def reflecting(
    script: Script,
    *,
    resource: Resource = Resource.NODES,
    settings: ReflectorSettings | None = None,
    horizon_s: float = float("inf"),
    view: View | None = None,
) -> AsyncIterator[Scene]:
    clock, view = ManualClock(horizon_s), view or View()
    async with (
        ScriptedServer(script).run() as server,
        client_for(server.url, clock) as client,
    ):
        reflector = Reflector(client, resource, view, settings)
        async with running(reflector.run):
            yield Scene(server, clock, reflector, view)


async def test_watch_starts_at_version_of_list() -> None:
    watches = in_turn(
        Answer(body=[added("b", 11) + modified("a", 12), deleted("a", 13)], hang=True)
    )
    script = lists_and_watches(in_turn(listing([node("a", 3)], "10")), watches)
    async with reflecting(script) as scene:
        await scene.until(lambda: scene.names == {"b"})
        watch = scene.server.asked[1]
    assert scene.lists[0].query == {"limit": "500"}
    assert watch.query["resourceVersion"] == "10"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert 300 <= int(watch.query["timeoutSeconds"]) <= 600
    kinds = [type(change) for batch in scene.view.batches for change in batch]
    assert kinds == [Listed, Upserted, Upserted, Deleted]
    assert len(scene.view.batches[1]) >= 2, "what came in one chunk goes on in one batch"


@pytest.mark.parametrize("finished", [False, True])
async def test_finished_pods_are_selected_on_request(finished: bool) -> None:
    clock, view = ManualClock(), View()
    script = lists_and_watches(in_turn(listing([], "1")), in_turn(HANG))
    async with (
        ScriptedServer(script).run() as server,
        client_for(server.url, clock) as client,
    ):
        watch = ClusterWatch(client, view, [Resource.PODS], finished_pods=finished)
        with anyio.fail_after(TIMEOUT_S):
            async with running(watch.run):
                while len(server.asked) < 2:
                    await anyio.lowlevel.checkpoint()
    asked_for = None if finished else "status.phase!=Succeeded,status.phase!=Failed"
    assert [asked.query.get("fieldSelector") for asked in server.asked[:2]] == [asked_for] * 2


async def test_list_has_relist_count() -> None:
    """A list in progress is cancelled, because its pods would lack the annotations."""
    clock, view = ManualClock(), View()
    lists = in_turn(listing([], "1"), HANG, listing([], "2"))
    script = lists_and_watches(lists, in_turn(refusal(410, "Expired"), HANG))
    async with ScriptedServer(script).run() as server, client_for(server.url, clock) as client:
        watch = ClusterWatch(client, view, [Resource.PODS])
        async with running(watch.run):
            with anyio.fail_after(TIMEOUT_S):
                while len(server.asked) < 3:
                    await anyio.lowlevel.checkpoint()
            await watch.extend([], annotations=["example.com/zone"])
            await view.until(lambda: len(view.batches) == 2)
    assert view.batches == [
        (Listed(Resource.PODS, ()),), (Listed(Resource.PODS, (), relist_count=1),)
    ]  # fmt: skip


async def test_pages_are_delivered_as_one_list() -> None:
    def lists(asked: Asked) -> Answer:
        at = int(asked.query.get("continue", "0"))
        return listing([node(f"n{at}", 1)], "7", str(at + 1) if at < 3 else "")

    async with reflecting(lists_and_watches(lists, in_turn(HANG))) as scene:
        await scene.until(lambda: scene.reflector.synced)
    assert scene.names == {"n0", "n1", "n2", "n3"}
    assert len(scene.view.batches) == 1
    assert [asked.query.get("limit") for asked in scene.lists] == ["500"] * 4


async def test_expired_continue_token_restarts_list() -> None:
    def lists(asked: Asked) -> Answer:
        if "continue" in asked.query:
            return refusal(410, "Expired")
        if "limit" in asked.query:
            return listing([node("old", 1)], "7", "more")
        return listing([node("a", 1), node("b", 2)], "8")

    async with reflecting(lists_and_watches(lists, in_turn(HANG))) as scene:
        await scene.until(lambda: scene.reflector.synced)
    assert scene.names == {"a", "b"}
    assert len(scene.lists) == 5


@pytest.mark.parametrize(
    "expiry", [refusal(410, "Expired"), Answer(body=[added("b", 11) + EXPIRED_EVENT])]
)
async def test_expired_version_is_relisted(expiry: Answer) -> None:
    lists = in_turn(listing([node("a", 3)], "10"), listing([node("c", 20)], "30"))
    with capture_logs() as logs:
        async with reflecting(lists_and_watches(lists, in_turn(expiry, HANG))) as scene:
            await scene.until(lambda: scene.names == {"c"})
    assert [entry["log_level"] for entry in logs] == ["info"], "expiry is nothing to worry about"
    assert scene.view.listed == [Resource.NODES] * 2


@pytest.mark.parametrize(
    ("refused", "watches_before_list"), [(refusal(400, "BadRequest"), 1), (refusal(500, ""), 5)]
)
async def test_repeatedly_rejected_watch_is_relisted(
    refused: Answer, watches_before_list: int
) -> None:
    lists = in_turn(listing([], "10"), listing([node("a", 11)], "11"))
    watches = in_turn(*[refused] * watches_before_list, HANG)
    async with reflecting(lists_and_watches(lists, watches)) as scene:
        await scene.until(lambda: scene.names == {"a"})
        assert len(scene.watched_from) == watches_before_list


async def test_repeated_expiry_is_paced() -> None:
    lists = in_turn(listing([node("a", 3)], "10"))
    script = lists_and_watches(lists, in_turn(refusal(410, "Expired")))
    async with reflecting(script, horizon_s=3600) as scene:
        with anyio.fail_after(TIMEOUT_S):
            await scene.clock.horizon_reached.wait()
        assert len(scene.lists) < 2 * 3600 / 15


async def test_watch_continues_from_last_version() -> None:
    watches = in_turn(
        Answer(body=[added("b", 11)]),
        Answer(body=[added("c", 12), bookmark(40)]),
        Answer(body=[added("d", 41), b'{"type":"ADDED","obj'], drop=True),
        Answer(body=[added("e", 42)], hang=True),
    )
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    async with reflecting(script) as scene:
        await scene.until(lambda: "e" in scene.names)
    assert scene.names == {"b", "c", "d", "e"}
    assert scene.watched_from == ["10", "11", "40", "41"]
    assert len(scene.lists) == 1
    assert scene.clock.sleeps_s == [], "whoever brings news is asked again at once"


async def test_hanging_watch_is_restarted_from_last_version() -> None:
    watches = in_turn(
        Answer(body=[added("b", 11)], hang=True),
        Answer(body=[added("c", 12)], hang=True),
    )
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    async with reflecting(script) as scene:
        await scene.until(lambda: scene.names == {"b"})
        scene.reflector.restart_watch()
        assert not scene.reflector.responded.is_set()
        await scene.until(lambda: scene.names == {"b", "c"})
        assert scene.reflector.responded.is_set()
    assert scene.watched_from == ["10", "11"]
    assert len(scene.lists) == 1


@pytest.mark.parametrize(
    "silent", [Answer(body=[added("b", 11)], hang=True), HANG, Answer(hang=True)]
)
async def test_watch_past_its_timeout_is_restarted(silent: Answer) -> None:
    """The server should end it after ``timeoutSeconds``. One that does not, and sends no byte, is
    held for dead soon after, whether or not it has answered at all."""
    brief = ReflectorSettings(watch_timeout_s=(1, 1), watch_grace_s=0.1)
    watches = in_turn(silent, Answer(body=[added("c", 12)], hang=True))
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    async with reflecting(script, settings=brief) as scene:
        await scene.until(lambda: "c" in scene.names)
    first, second = (asked for asked in scene.server.asked if asked.is_watch)
    assert first.query["timeoutSeconds"] == "1"
    assert second.query["resourceVersion"] == ("11" if silent.body else "10")
    assert len(scene.lists) == 1


async def test_watch_that_breaks_has_not_responded() -> None:
    """What it was to deliver is missing, so a new leader must not take it for current."""
    watches = in_turn(Answer(body=[], drop=True))
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    async with reflecting(script, horizon_s=0.0) as scene:
        await scene.clock.horizon_reached.wait()
        assert not scene.reflector.responded.is_set()


async def test_restart_interrupts_backoff() -> None:
    watches = in_turn(refusal(500, "InternalError"), Answer(body=[added("b", 11)], hang=True))
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    async with reflecting(script, horizon_s=0.0) as scene:
        await scene.clock.horizon_reached.wait()
        scene.reflector.restart_watch()
        await scene.until(lambda: scene.names == {"b"})


@pytest.mark.parametrize(
    "useless",
    [
        Answer(body=[]),
        Answer(body=[], drop=True),
        Answer(drop=True),
        Answer(body=[b"rubbish\n"]),
        Answer(body=[bookmark(10)]),
        Answer(body=[added("a", 10)]),
        refusal(500, "InternalError"),
        refusal(400, "BadRequest"),
        Answer(body=[event_line("ERROR", {"kind": "Status", "code": 500})]),
        Answer(body=[event_line("ERROR", "what")]),
    ],
)
async def test_watches_without_progress_are_paced(useless: Answer) -> None:
    script = lists_and_watches(in_turn(listing([], "10")), in_turn(useless))
    async with reflecting(script, horizon_s=3600) as scene:
        with anyio.fail_after(TIMEOUT_S):
            await scene.clock.horizon_reached.wait()
        assert 3600 / 31 < len(scene.server.asked) < 2 * 3600 / 15 + 20


async def test_watches_with_bookmarks_only_are_paced() -> None:
    versions = iter(range(11, 100_000))
    script = lists_and_watches(
        in_turn(listing([], "10")), lambda _: Answer(body=[bookmark(next(versions))])
    )
    async with reflecting(script, horizon_s=3600) as scene:
        with anyio.fail_after(TIMEOUT_S):
            await scene.clock.horizon_reached.wait()
        assert len(scene.server.asked) < 3600 / 15 + 20
    assert scene.watched_from[1] == "11"


async def test_retry_after_of_rejected_watch_is_respected() -> None:
    watches = in_turn(refusal(429, "TooManyRequests", Retry_After="33"), HANG)
    lists = in_turn(listing([], "10"))
    async with reflecting(lists_and_watches(lists, watches)) as scene:
        with anyio.fail_after(TIMEOUT_S):
            while len(scene.watched_from) < 2:
                await anyio.lowlevel.checkpoint()
    assert 33 <= scene.clock.now_s <= 40
    assert len(scene.lists) == 1


async def test_malformed_line_is_requested_again_then_skipped() -> None:
    watches = in_turn(
        Answer(body=[added("b", 11) + b'{"type":"MOD\n' + added("never", 12)]),
        Answer(body=[b'{"type":"MOD\n' + added("c", 12)], hang=True),
    )
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    with capture_logs() as logs:
        async with reflecting(script) as scene:
            await scene.until(lambda: "c" in scene.names)
    assert scene.names == {"b", "c"}
    assert scene.watched_from == ["10", "11"]
    assert [entry["event"] for entry in logs] == ["watch line skipped"]
    assert scene.reflector.decoder.counts.skipped == 1


async def test_undecodable_object_does_not_affect_others() -> None:
    bad = node("bad", 12) | {"status": {"allocatable": {"cpu": "1zillion"}}}
    chunk = added("a", 11) + event_line("ADDED", bad) + added("c", 13)
    script = lists_and_watches(in_turn(listing([], "10")), in_turn(Answer(body=[chunk]), HANG))
    with capture_logs() as logs:
        async with reflecting(script) as scene:
            await scene.until(lambda: "c" in scene.names)
    assert scene.names == {"a", "c"}
    (entry,) = [entry for entry in logs if entry["event"] == "object skipped"]
    assert (entry["resource"], entry["key"]) == ("nodes", "bad")
    assert "status.allocatable.cpu" in entry["error"]


async def test_undecodable_object_keeps_last_state_in_relist() -> None:
    bad = node("a", 12) | {"spec": 5}
    lists = in_turn(listing([node("a", 3)], "10"), listing([bad, node("b", 13)], "20"))
    watches = in_turn(refusal(410, "Expired"), HANG)
    async with reflecting(lists_and_watches(lists, watches)) as scene:
        await scene.until(lambda: "b" in scene.names)
    assert scene.names == {"a", "b"}


async def test_large_line_is_delivered() -> None:
    big = node("big", 11, note="x" * 4_000_000)
    script = lists_and_watches(
        in_turn(listing([], "10")), in_turn(Answer(body=[event_line("ADDED", big)], hang=True))
    )
    async with reflecting(script) as scene:
        await scene.until(lambda: scene.names == {"big"})


async def test_resource_not_served_is_empty() -> None:
    missing = Answer(404, b"404 page not found\n")
    lists = in_turn(missing, missing, missing, listing([node("a", 1)], "5"))
    with capture_logs() as logs:
        script = lists_and_watches(lists, in_turn(HANG))
        async with reflecting(script, resource=Resource.CSI_NODES) as scene:
            await scene.until(lambda: len(scene.view.batches) == 2)
    first, second = (change for batch in scene.view.batches for change in batch)
    assert first == Listed(Resource.CSI_NODES, ())
    assert isinstance(second, Listed)
    assert [item.name for item in second.objects] == ["a"]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "not served by the API server"
    ]
    assert all(slept >= 5 for slept in scene.clock.sleeps_s)


async def test_long_list_is_delivered_in_parts() -> None:
    """A continue token that expired begins the list again."""
    lists = in_turn(
        listing([node("a", 1), node("b", 1)], "5", "next"),
        refusal(410, "Expired", "too old"),
        listing([node("a", 1), node("b", 2)], "7", "next"),
        listing([node("c", 3)], "7", "last"),
        listing([], "7"),
    )
    script = lists_and_watches(lists, in_turn(HANG))
    async with reflecting(script, settings=ReflectorSettings(part_objects=2)) as scene:
        await scene.until(lambda: len(scene.view.batches) == 3)
        await scene.until(lambda: scene.reflector.synced)
    parts = [change for (change,) in scene.view.batches if isinstance(change, Listed)]
    assert [([i.name for i in p.objects], p.begins, p.ends) for p in parts] == [
        (["a", "b"], True, False),
        (["a", "b"], True, False),
        (["c"], False, True),
    ]
    assert scene.reflector.resource_version == "7"


async def test_core_api_not_found_is_not_empty() -> None:
    """A proxy or a starting API server may return 404 for pods: that is not an empty list."""
    missing = Answer(404, b"404 page not found\n")
    lists = in_turn(missing, missing, listing([node("a", 1)], "5"))
    watches = in_turn(missing, HANG)
    with capture_logs() as logs:
        async with reflecting(lists_and_watches(lists, watches)) as scene:
            await scene.until(lambda: len(scene.view.batches) == 2)
    assert scene.names == {"a"}
    assert [
        len(change.objects) for (change,) in scene.view.batches if isinstance(change, Listed)
    ] == [1, 1]
    assert {entry["event"] for entry in logs if entry["log_level"] == "warning"} == {
        "core resource not found"
    }
    assert len(scene.clock.sleeps_s) == 3
    assert all(slept >= 5 for slept in scene.clock.sleeps_s)


async def test_core_resource_not_found_is_not_listed() -> None:
    async with reflecting(in_turn(Answer(404)), horizon_s=100) as scene:
        with anyio.fail_after(TIMEOUT_S):
            await scene.clock.horizon_reached.wait()
        assert not scene.reflector.synced
        assert not scene.reflector.responded.is_set()
    assert scene.view.batches == []


async def test_resource_no_longer_served_keeps_objects() -> None:
    lists = in_turn(listing([node("a", 1)], "5"), Answer(404), listing([node("b", 2)], "6"))
    watches = in_turn(Answer(404), HANG)
    script = lists_and_watches(lists, watches)
    async with reflecting(script, resource=Resource.CSI_NODES) as scene:
        await scene.until(lambda: len(scene.view.batches) == 2)
    assert [
        len(change.objects) for (change,) in scene.view.batches if isinstance(change, Listed)
    ] == [1, 1]


async def test_missing_permission_is_logged_and_retried_slowly() -> None:
    forbidden = refusal(403, "Forbidden", "nodes is forbidden: no")
    with capture_logs() as logs:
        async with reflecting(in_turn(forbidden), horizon_s=3600) as scene:
            with anyio.fail_after(TIMEOUT_S):
                await scene.clock.horizon_reached.wait()
            assert not scene.reflector.synced
    assert 3600 / 61 <= len(scene.server.asked) <= 3600 / 30 + 6
    assert 0 < len(logs) <= 3600 / 300 + 1
    assert {(entry["event"], entry["error"]) for entry in logs} == {
        ("not permitted", "nodes is forbidden: no")
    }


async def test_forbidden_optional_resource_is_no_warning() -> None:
    forbidden = refusal(403, "Forbidden", "priorityclasses is forbidden: no")
    with capture_logs() as logs:
        async with reflecting(in_turn(forbidden), resource=Resource.PRIORITY_CLASSES) as scene:
            await scene.until(lambda: scene.reflector.synced)
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [("info", "not permitted")]


async def test_failing_watch_is_logged_at_intervals() -> None:
    failing = Answer(body=[event_line("ERROR", {"kind": "Status", "code": 500, "message": "no"})])
    script = lists_and_watches(in_turn(listing([], "10")), in_turn(failing))
    with capture_logs() as logs:
        async with reflecting(script, horizon_s=3600) as scene:
            with anyio.fail_after(TIMEOUT_S):
                await scene.clock.horizon_reached.wait()
    assert 0 < len(logs) <= 3600 / 300 + 1


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Answer(drop=True), "no response from the API server"),
        (Answer(body=b"<html>"), "malformed response from the API server"),
    ],
)
async def test_failed_list_is_logged_until_a_list_succeeds(broken: Answer, problem: str) -> None:
    script = lists_and_watches(in_turn(*[broken] * 10, listing([], "5")), in_turn(HANG))
    with capture_logs() as logs:
        async with reflecting(script) as scene:
            await scene.until(lambda: scene.reflector.synced)
            await anyio.wait_all_tasks_blocked()
    assert [(entry["event"], entry.get("request")) for entry in logs] == [
        (problem, "list"), ("requests succeed again", "list")
    ]  # fmt: skip


async def test_list_between_failing_watches_does_not_repeat_the_log() -> None:
    watches = in_turn(*[refusal(500, "")] * 12, Answer(body=[added("a", 11)], hang=True))
    script = lists_and_watches(in_turn(listing([], "10")), watches)
    with capture_logs() as logs:
        async with reflecting(script) as scene:
            await scene.until(lambda: scene.names == {"a"})
            await anyio.wait_all_tasks_blocked()
    assert len(scene.lists) == 3
    assert [entry["event"] for entry in logs] == [
        "API server returned an error", "requests succeed again"
    ]  # fmt: skip


async def test_rejected_token_causes_no_relist() -> None:
    watches = in_turn(*[refusal(401, "Unauthorized")] * 3, Answer(body=[added("a", 11)], hang=True))
    with capture_logs() as logs:
        async with reflecting(lists_and_watches(in_turn(listing([], "10")), watches)) as scene:
            await scene.until(lambda: scene.names == {"a"})
            await anyio.wait_all_tasks_blocked()
    assert len(scene.lists) == 1
    assert [entry["event"] for entry in logs] == [
        "API server returned an error", "requests succeed again"
    ]  # fmt: skip


async def test_optional_resources_may_be_forbidden() -> None:
    async with reflecting(
        in_turn(refusal(403, "Forbidden")), resource=Resource.PRIORITY_CLASSES
    ) as scene:
        await scene.until(lambda: scene.reflector.synced)
    assert scene.view.batches == [(Listed(Resource.PRIORITY_CLASSES, ()),)]


@pytest.mark.parametrize("body", [b"<html>", b'{"items":[]}'])
async def test_invalid_list_is_not_delivered(body: bytes) -> None:
    lists = in_turn(Answer(body=body), listing([node("a", 1)], "5"))
    async with reflecting(lists_and_watches(lists, in_turn(HANG))) as scene:
        await scene.until(lambda: scene.names == {"a"})
    assert len(scene.view.batches) == 1
    assert len(scene.clock.sleeps_s) == 1


class FullView(View):
    """Accepts a batch, and has no room for more until released."""

    def __init__(self) -> None:
        super().__init__()
        self.free = anyio.Event()

    async def wait_for_capacity(self) -> None:
        await self.free.wait()

    def has_batches(self, count: int) -> bool:
        return len(self.batches) == count


async def test_sink_applies_backpressure() -> None:
    script = lists_and_watches(in_turn(listing([], "10")), in_turn(Answer(body=[added("a", 11)])))
    view = FullView()
    async with reflecting(script, view=view) as scene:
        await scene.until(lambda: bool(view.listed))
        await anyio.wait_all_tasks_blocked()
        assert len(scene.server.asked) == 1, "no watch before there is room after the list"
        view.free.set()
        await scene.until(lambda: scene.names == {"a"})


async def test_changes_accepted_by_full_sink_are_not_repeated() -> None:
    """As a new leader that restarts its watches while its engine lags behind."""
    brought = {"10": added("b", 11) + deleted("b", 12), "12": added("c", 13)}
    script = lists_and_watches(
        in_turn(listing([node("a", 3)], "10")),
        lambda asked: Answer(body=[brought[asked.query["resourceVersion"]]], hang=True),
    )
    view = FullView()
    async with reflecting(script, view=view) as scene:
        for taken in (1, 2, 3):
            await scene.until(partial(view.has_batches, taken))
            await anyio.wait_all_tasks_blocked()
            assert view.has_batches(taken), "each is held back"
            scene.reflector.restart_watch()
            assert not scene.reflector.responded.is_set()
        assert [type(change) for batch in view.batches for change in batch] == [
            Listed, Upserted, Deleted, Upserted
        ]  # fmt: skip
        assert len(scene.lists) == 1
        assert scene.watched_from == ["10", "12"]


async def test_empty_list_is_delivered_once_to_full_sink() -> None:
    view = FullView()
    script, resource = in_turn(refusal(404, "NotFound")), Resource.CSI_NODES
    async with reflecting(script, horizon_s=0, view=view, resource=resource) as scene:
        await scene.until(lambda: bool(view.batches))
        await anyio.wait_all_tasks_blocked()
        scene.reflector.restart_watch()
        with anyio.fail_after(TIMEOUT_S):
            await scene.clock.horizon_reached.wait()
    assert view.batches == [(Listed(Resource.CSI_NODES, ()),)]


def unsynced(watch: ClusterWatch) -> list[WatchedResource]:
    """The resources without a list."""
    return [reflector.resource for reflector in watch.reflectors if not reflector.synced]


async def test_pods_are_listed_after_all_other_resources() -> None:
    def script(asked: Asked) -> Answer:
        if asked.is_watch:
            return HANG
        if asked.path.endswith("/nodes"):
            return refusal(403, "Forbidden")
        return listing([], "1")

    view, clock = View(), ManualClock(horizon_s=1)
    async with (
        ScriptedServer(script).run() as server,
        client_for(server.url, clock) as client,
    ):
        watch = ClusterWatch(client, view)
        assert unsynced(watch) == [*Resource]
        async with running(watch.run):
            await view.until(lambda: Resource.PODS in view.listed)
    assert unsynced(watch) == [Resource.NODES]
    assert {*view.listed} == {*Resource} - {Resource.NODES}
    assert view.listed[-1] is Resource.PODS


async def test_responses_of_some_watches_are_awaited() -> None:
    def script(asked: Asked) -> Answer:
        if not asked.is_watch:
            return listing([], "1")
        return Answer(body=[], drop=True) if asked.path.endswith("/nodes") else Answer(hang=True)

    clock = ManualClock(horizon_s=0.0)
    async with (
        ScriptedServer(script).run() as server,
        client_for(server.url, clock) as client,
    ):
        watch = ClusterWatch(client, View())
        async with running(watch.run):
            await clock.horizon_reached.wait()
            assert Resource.NODES in await watch.wait_for_responses(0.0)
            assert await watch.wait_for_responses(0.0, (Resource.NODES,)) == [Resource.NODES]
            assert not await watch.wait_for_responses(60.0, (Resource.PODS,))


async def test_finished_pod_is_delivered_as_deleted() -> None:
    """A pod that no longer matches the selector is delivered as deleted, with its last state."""
    pod = {"metadata": {"name": "p", "namespace": "a", "uid": "u", "resourceVersion": "4"}}
    gone = pod | {"status": {"phase": "Succeeded"}}
    script = lists_and_watches(
        in_turn(Answer(body=json_bytes({"metadata": {"resourceVersion": "4"}, "items": [pod]}))),
        in_turn(Answer(body=[event_line("DELETED", gone)], hang=True)),
    )
    async with reflecting(script, resource=Resource.PODS) as scene:
        await scene.until(lambda: len(scene.view.batches) == 2)
    (change,) = scene.view.batches[1]
    assert isinstance(change, Deleted)
    assert scene.view.of(Resource.PODS) == {}


def pages_of(nodes: list[dict[str, Any]], largest_bytes: int) -> Script:
    """Lists in pages; a page of more bytes exceeds the limit for a response."""

    def script(asked: Asked) -> Answer:
        begin = int(asked.query.get("continue", "0"))
        end = begin + int(asked.query.get("limit", "500"))
        page = listing(nodes[begin:end], "10", str(end) if end < len(nodes) else "")
        assert isinstance(page.body, bytes)
        if len(page.body) > largest_bytes:
            return Answer(body=b"x" * (response_parser.BODY_LIMIT_BYTES + 1))
        return page

    return script


async def test_too_large_pages_are_requested_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_parser, "BODY_LIMIT_BYTES", 100_000)
    monkeypatch.setattr(paged_lists, "PAGE_BYTES", 50_000)
    monkeypatch.setattr(paged_lists, "DECODED_AT_ONCE_BYTES", 20_000)
    nodes = [node(f"n{number}", 3, padding="x" * 10_000) for number in range(60)]
    script = lists_and_watches(pages_of(nodes, 100_000), in_turn(HANG))
    async with reflecting(script) as scene:
        await scene.until(lambda: len(scene.names) == 60)
    limits = [int(asked.query["limit"]) for asked in scene.lists]
    assert limits[:7] == [500, 250, 125, 62, 31, 15, 7]
    assert set(limits[7:]) == {4}, "pages of 50,000 bytes"
    assert scene.clock.sleeps_s == []


async def test_pages_grow_again_with_small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_lists, "PAGE_BYTES", 50_000)
    size = PageSize(500)
    size.received(1_000_000, 100)
    assert size.limit == 5
    for expected in (10, 20, 40, 80):
        size.received(1_000, size.limit)
        assert size.limit == expected
    size.received(0, 0)
    assert size.limit == 80


async def test_page_without_response_is_requested_smaller() -> None:
    lists = in_turn(*[Answer(drop=True)] * 5, listing([node("a", 3)], "10"))
    async with reflecting(lists_and_watches(lists, in_turn(HANG))) as scene:
        await scene.until(lambda: scene.names == {"a"})
    assert [asked.query["limit"] for asked in scene.lists][-1] == "250"
