"""The event recorder with the embedded API server: texts, series, overload, shutdown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asched.apiserver.auth import SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.kube.event_bodies import NOTE_LIMIT_BYTES, cut_note
from asched.kube.events import EventRecorder, EventRecorderSettings
from asched.kube.pod_writer import PodTarget
from asched.kube.timing import RetryPolicy
from asched.kube.transport import ApiRequest, Credentials, HttpResponse
from tests.kube.harness import (
    TIMEOUT_S,
    Answer,
    Asked,
    ManualClock,
    ScriptedServer,
    client_for,
    in_turn,
)
from tests.kube.virtual_time import ScriptTransport, client_over, virtual_clock

POD = PodTarget("default", "p", "uid-p")
QUICK = EventRecorderSettings(retry=RetryPolicy(attempts=2))


class Stage:
    def __init__(self, server: ApiServer, recorder: EventRecorder, clock: ManualClock) -> None:
        self.server = server
        self.cluster = server.cluster
        self.faults = server.faults
        self.recorder = recorder
        self.clock = clock

    @property
    def events(self) -> list[dict[str, Any]]:
        """In the form of the core API, in which the note is the message."""
        return self.cluster.list("events")

    async def sent(self, count: int) -> None:
        with anyio.fail_after(TIMEOUT_S):
            while self.recorder.counts.sent + self.recorder.counts.failed < count:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def stage(settings: EventRecorderSettings = QUICK) -> AsyncIterator[Stage]:
    clock = ManualClock()
    server = ApiServer(EmbeddedCluster(seed=1), tokens={"t": SCHEDULER})
    async with (
        server.run(),
        client_for(server.url, clock, token="t") as client,
        anyio.create_task_group() as tasks,
    ):
        recorder = EventRecorder(client, "default-scheduler", "default-scheduler-host", settings)
        tasks.start_soon(recorder.run)
        yield Stage(server, recorder, clock)
        await recorder.stop(deadline_s=TIMEOUT_S)


async def test_events_have_kube_schedulers_texts() -> None:
    async with stage() as s:
        s.recorder.scheduled(POD, "n1")
        s.recorder.failed_scheduling(POD, "0/1 nodes are available: 1 Too many pods.")
        s.recorder.preempted(PodTarget("default", "victim", "uid-v"), POD, "n1")
        await s.sent(3)
        found = {event["reason"]: event for event in s.events}
    scheduled, failed, preempted = (
        found[reason] for reason in ("Scheduled", "FailedScheduling", "Preempted")
    )
    assert (scheduled["type"], scheduled["action"]) == ("Normal", "Binding")
    assert scheduled["message"] == "Successfully assigned default/p to n1"
    assert (failed["type"], failed["action"]) == ("Warning", "Scheduling")
    assert failed["message"] == "0/1 nodes are available: 1 Too many pods."
    assert (preempted["type"], preempted["action"]) == ("Normal", "Preempting")
    assert preempted["message"] == "Preempted by pod uid-p on node n1"
    assert preempted["involvedObject"]["name"] == "victim"
    assert preempted["related"]["uid"] == "uid-p"
    assert scheduled["reportingComponent"] == "default-scheduler"
    assert scheduled["eventTime"] == "2026-01-01T00:00:00.000000Z"


async def test_repeated_event_becomes_series() -> None:
    async with stage() as s:
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(1)
        for second in range(1, 120):
            s.clock.now_s = float(second)
            s.recorder.failed_scheduling(POD, "no")
            await anyio.lowlevel.checkpoint()
        await s.sent(3)
        (event,) = s.events
        requests = s.recorder.counts.sent
        assert requests <= 4
        assert event["series"]["count"] > 50
    (event,) = s.events
    assert event["series"]["count"] == 120, "the end sends what was not sent yet"
    assert event["series"]["lastObservedTime"] == "2026-01-01T00:01:59.000000Z"


async def test_different_note_pod_or_time_is_another_event() -> None:
    async with stage() as s:
        s.recorder.failed_scheduling(POD, "no")
        s.recorder.failed_scheduling(POD, "still no")
        s.recorder.failed_scheduling(PodTarget("default", "q", "uid-q"), "no")
        s.clock.now_s = QUICK.series_window_s
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(4)
        assert len(s.events) == 4


async def test_expired_series_gets_last_update() -> None:
    async with stage() as s:
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(1)
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(2)
        s.recorder.failed_scheduling(POD, "no")
        s.clock.now_s += QUICK.series_window_s
        s.recorder.scheduled(POD, "n1")
        await s.sent(4)
        (series,) = [e["series"] for e in s.events if e["reason"] == "FailedScheduling"]
        assert series["count"] == 3


async def test_scheduled_events_do_not_evict_series() -> None:
    settings = EventRecorderSettings(series_limit=2)
    async with stage(settings) as s:
        for _ in range(2):
            s.recorder.failed_scheduling(POD, "no")
            for pod in pods(5):
                s.recorder.scheduled(pod, "n1")
        await s.sent(11)
        failed = [e for e in s.events if e["reason"] == "FailedScheduling"]
    assert [e["series"]["count"] for e in failed] == [2]


async def test_series_continues_in_new_event_after_expiry() -> None:
    async with stage() as s:
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(1)
        s.cluster.delete(
            "events.events.k8s.io", s.events[0]["metadata"]["name"], namespace="default"
        )
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(2)
        (event,) = s.events
        assert event["series"]["count"] == 2


async def test_event_with_lost_response_exists_once() -> None:
    async with stage() as s:
        s.faults.drop(verb="create", after_effect=True)
        s.recorder.scheduled(POD, "n1")
        await s.sent(1)
        assert len(s.events) == 1
        assert s.recorder.counts.failed == 0


async def test_rejected_event_is_counted() -> None:
    with capture_logs() as logs:
        async with stage() as s:
            s.faults.respond(500, count=2, verb="create")
            s.recorder.scheduled(PodTarget("default", "first", "u"), "n1")
            await s.sent(1)
            s.recorder.scheduled(POD, "n1")
            await s.sent(2)
            assert [event["involvedObject"]["name"] for event in s.events] == ["p"]
            assert s.recorder.counts.failed == 1
    assert [entry["event"] for entry in logs] == ["event not sent"]


async def test_full_queue_drops_oldest_and_logs_once() -> None:
    clock = ManualClock()
    settings = EventRecorderSettings(queue_limit=10)
    async with client_for("http://127.0.0.1:9", clock) as client:
        recorder = EventRecorder(client, "c", "i", settings)
        with capture_logs() as logs:
            for number in range(100):
                recorder.scheduled(PodTarget("a", f"p{number}", "u"), "n")
        assert recorder.counts.dropped == 90
        assert [entry["event"] for entry in logs] == ["events dropped: queue is full"]
        clock.now_s = 61.0
        with capture_logs() as logs:
            recorder.scheduled(POD, "n")
        assert logs[0]["dropped"] == 90
        with anyio.move_on_after(0):
            await recorder.run()


async def test_stop_does_not_wait_for_more_events() -> None:
    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = ScriptTransport(lambda asked: Answer(201), clock)
        settings = EventRecorderSettings()
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        tasks.start_soon(recorder.run)
        recorder.scheduled(pods(1)[0], "n")
        await clock.sleep(settings.gather_s / 2)
        assert recorder.counts.sent == 0
        begun_s = clock.now_s
        await recorder.stop(deadline_s=TIMEOUT_S)
        assert recorder.counts.sent == 1
        assert clock.now_s == begun_s


async def test_full_pipeline_is_sent_without_a_wait() -> None:
    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = ScriptTransport(lambda asked: Answer(201), clock)
        settings = EventRecorderSettings(pipeline_limit=8)
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        tasks.start_soon(recorder.run)
        for pod in pods(7):
            recorder.scheduled(pod, "n")
        await clock.sleep(settings.gather_s / 2)
        assert transport.pipelines == []
        recorder.scheduled(POD, "n")
        await clock.sleep(settings.gather_s / 10)
        assert transport.pipelines == [8]
        await recorder.stop(deadline_s=TIMEOUT_S)


async def test_stop_respects_deadline() -> None:
    with capture_logs() as logs:
        async with (
            ScriptedServer(in_turn(Answer(hang=True))).run() as server,
            client_for(server.url, ManualClock()) as client,
            anyio.create_task_group() as tasks,
        ):
            recorder = EventRecorder(client, "c", "i", EventRecorderSettings(senders=1))
            tasks.start_soon(recorder.run)
            recorder.scheduled(POD, "n1")
            recorder.scheduled(PodTarget("a", "q", "u"), "n1")
            recorder.scheduled(PodTarget("a", "r", "u"), "n1")
            with anyio.fail_after(TIMEOUT_S):
                while not server.asked:
                    await anyio.lowlevel.checkpoint()
            await recorder.stop(deadline_s=0.05)
            recorder.scheduled(POD, "too late")
    assert recorder.counts.dropped == 1
    assert logs == [
        {"event": "events not sent before shutdown", "events": 3, "log_level": "warning"}
    ]


def pods(count: int) -> list[PodTarget]:
    return [PodTarget("default", f"p{number}", f"uid-{number}") for number in range(count)]


async def test_new_events_are_pipelined() -> None:
    created: list[str] = []

    def script(asked: Asked) -> Answer:
        created.append(msgspec.json.decode(asked.body)["metadata"]["name"].partition(".")[0])
        return Answer(201)

    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = ScriptTransport(script, clock)
        settings = EventRecorderSettings(pipeline_limit=8, senders=1)
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        for pod in pods(20):
            recorder.scheduled(pod, "n")
        tasks.start_soon(recorder.run)
        await recorder.stop(deadline_s=TIMEOUT_S)
    assert transport.pipelines == [8, 8, 4]
    assert created == [pod.name for pod in pods(20)]
    assert recorder.counts.sent == 20


class SlowTransport(ScriptTransport):
    """A pipeline takes a second; counts those in progress."""

    active = most = 0

    async def exchange_pipelined(
        self, credentials: Credentials, requests: Sequence[ApiRequest]
    ) -> list[HttpResponse]:
        self.active += 1
        self.most = max(self.most, self.active)
        await self._clock.sleep(1.0)
        self.active -= 1
        return await super().exchange_pipelined(credentials, requests)


@pytest.mark.parametrize(("events", "parallel"), [(12, 1), (40, 4)])
async def test_senders_work_in_parallel_only_if_many_events_wait(
    events: int, parallel: int
) -> None:
    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = SlowTransport(lambda asked: Answer(201), clock)
        settings = EventRecorderSettings(pipeline_limit=4, parallel_from=12)
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        for pod in pods(events):
            recorder.scheduled(pod, "n")
        tasks.start_soon(recorder.run)
        await recorder.stop(deadline_s=TIMEOUT_S)
    assert recorder.counts.sent == events
    assert transport.most == parallel


@pytest.mark.parametrize(
    ("busy_s", "queue_limit", "sent_after_s"),
    [(5.0, 100, 5.0), (60.0, 100, 30.0), (60.0, 12, 0.0)],
    ids=["until not busy", "for a limited time", "while the queue has room"],
)
async def test_events_wait_while_others_use_the_api_server(
    busy_s: float, queue_limit: int, sent_after_s: float
) -> None:
    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = ScriptTransport(lambda asked: Answer(201), clock)
        settings = EventRecorderSettings(queue_limit=queue_limit, pipeline_limit=10)
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        recorder.yield_while(lambda: clock.now_s < busy_s)
        for pod in pods(10):
            recorder.scheduled(pod, "n")
        tasks.start_soon(recorder.run)
        if sent_after_s:
            await clock.sleep(sent_after_s - 0.1)
            assert recorder.counts.sent == 0
        await clock.sleep(2 * settings.gather_s)
        assert recorder.counts.sent == 10
        await recorder.stop(deadline_s=TIMEOUT_S)


async def test_event_rejected_in_pipeline_is_retried_alone() -> None:
    async with stage() as s:
        s.faults.respond(500, count=1, verb="create")
        for pod in pods(5):
            s.recorder.scheduled(pod, "n1")
        await s.sent(5)
        assert len(s.events) == 5
        assert s.recorder.counts.failed == 0


async def test_broken_pipeline_creates_each_event_once() -> None:
    async with stage() as s:
        s.faults.drop(verb="create", after_effect=True)
        for pod in pods(5):
            s.recorder.scheduled(pod, "n1")
        await s.sent(5)
        assert len(s.events) == 5
        assert s.recorder.counts.failed == 0


async def test_pipelining_pauses_after_missing_response() -> None:
    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = ScriptTransport(in_turn(Answer(hang=True), Answer(201)), clock)
        settings = EventRecorderSettings(senders=1)
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        tasks.start_soon(recorder.run)
        lines = []
        for pause_s in (2 * settings.request_timeout_s, settings.pipeline_pause_s, 2.0):
            for pod in pods(3):
                recorder.scheduled(pod, f"n{clock.now_s}")
            await clock.sleep(pause_s)
            lines.append(len(transport.pipelines))
        await recorder.stop(deadline_s=TIMEOUT_S)
    assert lines == [1, 1, 2]
    assert recorder.counts.sent == 9


async def test_event_repeated_during_send_becomes_series() -> None:
    async with stage() as s:
        for pod in pods(3):
            s.recorder.failed_scheduling(pod, "no")
        with anyio.fail_after(TIMEOUT_S):
            while s.recorder.waiting:
                await anyio.lowlevel.checkpoint()
        s.recorder.failed_scheduling(pods(3)[1], "no")
        await s.sent(4)
        assert len(s.events) == 3
        assert [e["series"]["count"] for e in s.events if e.get("series")] == [2]


async def test_event_of_pod_with_longest_name() -> None:
    async with stage() as s:
        name = ".".join(["p" * 62] * 4)[:253]
        s.recorder.scheduled(PodTarget("default", name, "u"), "n" * 253)
        s.recorder.failed_scheduling(PodTarget("default", name, "u"), "no")
        await s.sent(2)
        assert len(s.events) == 2
        assert s.recorder.counts.failed == 0


@given(st.text(max_size=2000))
def test_notes_are_truncated_to_api_limit(note: str) -> None:
    note = note.encode(errors="ignore").decode()
    cut = cut_note(note)
    assert len(cut.encode()) <= NOTE_LIMIT_BYTES
    if len(note.encode()) <= NOTE_LIMIT_BYTES:
        assert cut == note
    else:
        assert cut.endswith(" ...")
        assert note.startswith(cut.removesuffix(" ..."))
        assert len(cut.encode()) > NOTE_LIMIT_BYTES - 4
