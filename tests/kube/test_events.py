"""The event recorder against the embedded API server: texts, series, pressure, the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asched.apiserver.auth import SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.kube.events import NOTE_LIMIT_BYTES, EventRecorder, EventRecorderSettings, cut_note
from asched.kube.pod_writer import PodRef
from asched.kube.timing import RetryPolicy
from tests.kube.harness import (
    PATIENCE_S,
    Answer,
    Asked,
    ManualClock,
    ScriptedServer,
    client_for,
    in_turn,
)
from tests.kube.virtual_time import ScriptTransport, client_over, virtual_clock

POD = PodRef("default", "p", "uid-p")
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
        """As the core API shows them: the note is the message there."""
        return self.cluster.list("events")

    async def sent(self, count: int) -> None:
        with anyio.fail_after(PATIENCE_S):
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
        await recorder.stop(deadline_s=PATIENCE_S)


async def test_the_three_events_have_kube_schedulers_words() -> None:
    async with stage() as s:
        s.recorder.scheduled(POD, "n1")
        s.recorder.failed_scheduling(POD, "0/1 nodes are available: 1 Too many pods.")
        s.recorder.preempted(PodRef("default", "victim", "uid-v"), POD, "n1")
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


async def test_the_same_event_again_becomes_a_series_updated_now_and_then() -> None:
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


async def test_another_note_another_pod_and_another_time_are_other_events() -> None:
    async with stage() as s:
        s.recorder.failed_scheduling(POD, "no")
        s.recorder.failed_scheduling(POD, "still no")
        s.recorder.failed_scheduling(PodRef("default", "q", "uid-q"), "no")
        s.clock.now_s = QUICK.series_window_s
        s.recorder.failed_scheduling(POD, "no")
        await s.sent(4)
        assert len(s.events) == 4


async def test_a_series_that_ends_is_updated_a_last_time() -> None:
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


async def test_pods_that_are_scheduled_end_no_series() -> None:
    settings = EventRecorderSettings(series_limit=2)
    async with stage(settings) as s:
        for _ in range(2):
            s.recorder.failed_scheduling(POD, "no")
            for pod in pods(5):
                s.recorder.scheduled(pod, "n1")
        await s.sent(11)
        failed = [e for e in s.events if e["reason"] == "FailedScheduling"]
    assert [e["series"]["count"] for e in failed] == [2]


async def test_a_series_whose_event_has_expired_goes_on_in_a_new_one() -> None:
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


async def test_an_event_whose_answer_was_lost_is_there_once() -> None:
    async with stage() as s:
        s.faults.drop(verb="create", after_effect=True)
        s.recorder.scheduled(POD, "n1")
        await s.sent(1)
        assert len(s.events) == 1
        assert s.recorder.counts.failed == 0


async def test_an_event_that_is_refused_is_counted_and_the_next_is_sent() -> None:
    with capture_logs() as logs:
        async with stage() as s:
            s.faults.answer(500, count=2, verb="create")
            s.recorder.scheduled(PodRef("default", "first", "u"), "n1")
            await s.sent(1)
            s.recorder.scheduled(POD, "n1")
            await s.sent(2)
            assert [event["involvedObject"]["name"] for event in s.events] == ["p"]
            assert s.recorder.counts.failed == 1
    assert [entry["event"] for entry in logs] == ["event not sent"]


async def test_when_the_queue_is_full_the_oldest_goes_and_it_is_said_once() -> None:
    clock = ManualClock()
    settings = EventRecorderSettings(queue_limit=10)
    async with client_for("http://127.0.0.1:9", clock) as client:
        recorder = EventRecorder(client, "c", "i", settings)
        with capture_logs() as logs:
            for number in range(100):
                recorder.scheduled(PodRef("a", f"p{number}", "u"), "n")
        assert recorder.counts.dropped == 90
        assert [entry["event"] for entry in logs] == ["events dropped: the API server is too slow"]
        clock.now_s = 61.0
        with capture_logs() as logs:
            recorder.scheduled(POD, "n")
        assert logs[0]["dropped"] == 90
        with anyio.move_on_after(0):
            await recorder.run()


async def test_the_end_waits_no_longer_than_its_deadline() -> None:
    with capture_logs() as logs:
        async with (
            ScriptedServer(in_turn(Answer(hang=True))).run() as server,
            client_for(server.url, ManualClock()) as client,
            anyio.create_task_group() as tasks,
        ):
            recorder = EventRecorder(client, "c", "i", EventRecorderSettings(senders=1))
            tasks.start_soon(recorder.run)
            recorder.scheduled(POD, "n1")
            recorder.scheduled(PodRef("a", "q", "u"), "n1")
            recorder.scheduled(PodRef("a", "r", "u"), "n1")
            with anyio.fail_after(PATIENCE_S):
                while not server.asked:
                    await anyio.lowlevel.checkpoint()
            await recorder.stop(deadline_s=0.05)
            recorder.scheduled(POD, "too late")
    assert recorder.counts.dropped == 1
    assert logs == [
        {"event": "events not sent before the end", "events": 3, "log_level": "warning"}
    ]


def pods(count: int) -> list[PodRef]:
    return [PodRef("default", f"p{number}", f"uid-{number}") for number in range(count)]


async def test_what_is_new_goes_in_one_line_and_is_there_once() -> None:
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
        await recorder.stop(deadline_s=PATIENCE_S)
    assert transport.lines == [8, 8, 4]
    assert created == [pod.name for pod in pods(20)]
    assert recorder.counts.sent == 20


async def test_one_that_is_refused_in_a_line_is_tried_again_alone() -> None:
    async with stage() as s:
        s.faults.answer(500, count=1, verb="create")
        for pod in pods(5):
            s.recorder.scheduled(pod, "n1")
        await s.sent(5)
        assert len(s.events) == 5
        assert s.recorder.counts.failed == 0


async def test_a_line_that_breaks_leaves_each_event_there_once() -> None:
    async with stage() as s:
        s.faults.drop(verb="create", after_effect=True)
        for pod in pods(5):
            s.recorder.scheduled(pod, "n1")
        await s.sent(5)
        assert len(s.events) == 5
        assert s.recorder.counts.failed == 0


async def test_after_a_line_without_an_answer_events_go_alone_for_a_while() -> None:
    async with virtual_clock() as clock, anyio.create_task_group() as tasks:
        transport = ScriptTransport(in_turn(Answer(hang=True), Answer(201)), clock)
        settings = EventRecorderSettings(senders=1)
        recorder = EventRecorder(client_over(transport, clock), "c", "i", settings)
        tasks.start_soon(recorder.run)
        lines = []
        for pause_s in (2 * settings.request_timeout_s, settings.pipeline_pause_s, 1.0):
            for pod in pods(3):
                recorder.scheduled(pod, f"n{clock.now_s}")
            await clock.sleep(pause_s)
            lines.append(len(transport.lines))
        await recorder.stop(deadline_s=PATIENCE_S)
    assert lines == [1, 1, 2]
    assert recorder.counts.sent == 9


async def test_an_event_that_occurs_again_while_it_is_sent_becomes_a_series() -> None:
    async with stage() as s:
        for pod in pods(3):
            s.recorder.failed_scheduling(pod, "no")
        with anyio.fail_after(PATIENCE_S):
            while s.recorder.waiting:
                await anyio.lowlevel.checkpoint()
        s.recorder.failed_scheduling(pods(3)[1], "no")
        await s.sent(4)
        assert len(s.events) == 3
        assert [e["series"]["count"] for e in s.events if e.get("series")] == [2]


async def test_a_pod_of_253_characters_has_an_event() -> None:
    async with stage() as s:
        name = ".".join(["p" * 62] * 4)[:253]
        s.recorder.scheduled(PodRef("default", name, "u"), "n" * 253)
        s.recorder.failed_scheduling(PodRef("default", name, "u"), "no")
        await s.sent(2)
        assert len(s.events) == 2
        assert s.recorder.counts.failed == 0


@given(st.text(max_size=2000))
def test_notes_are_cut_to_what_the_api_takes(note: str) -> None:
    note = note.encode(errors="ignore").decode()
    cut = cut_note(note)
    assert len(cut.encode()) <= NOTE_LIMIT_BYTES
    if len(note.encode()) <= NOTE_LIMIT_BYTES:
        assert cut == note
    else:
        assert cut.endswith(" ...")
        assert note.startswith(cut.removesuffix(" ..."))
        assert len(cut.encode()) > NOTE_LIMIT_BYTES - 4
