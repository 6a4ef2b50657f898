"""Traces of attempts, as OpenTelemetry's own exporter in memory receives them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.tracing import AttemptTracer, TracingUnavailableError, closed, traced
from asched.journal import open_journal
from tests.daemon.world import world

Spans = dict[int, list[ReadableSpan]]


def children(spans: tuple[ReadableSpan, ...]) -> Spans:
    """By the id of the span they are in; 0 for those in none."""
    found: Spans = {}
    for span in spans:
        found.setdefault(span.parent.span_id if span.parent else 0, []).append(span)
    return found


def inside(span: ReadableSpan, spans: Spans) -> dict[str, ReadableSpan]:
    context = span.get_span_context()
    assert context is not None
    return {inner.name: inner for inner in spans.get(context.span_id, [])}


async def spans_of(tmp_path: Path, ratio: float, pods: int) -> tuple[ReadableSpan, ...]:
    exporter, metrics = InMemorySpanExporter(), Metrics()
    tracer = AttemptTracer(ratio, SimpleSpanProcessor(exporter))
    metrics.cycle_sinks.append(tracer)
    async with world(tmp_path, nodes=2) as w, w.daemon(metrics=metrics):
        w.add_pods(pods, "p")
        w.add_pod("big", "100")
        await w.until(lambda: w.unbound() == ["big"] and w.message("big") != "")
    tracer.close()
    return exporter.get_finished_spans()


async def test_trace_holds_points_plugins_and_binding(tmp_path: Path) -> None:
    spans = await spans_of(tmp_path, 1.0, pods=1)
    tree = children(spans)
    by_pod = {(span.attributes or {})["k8s.pod.name"]: span for span in tree[0]}
    assert set(by_pod) == {"p-0", "big"}

    placed, attributes = by_pod["p-0"], by_pod["p-0"].attributes or {}
    assert placed.name == "scheduling attempt"
    assert attributes["asched.result"] == "assigned"
    assert attributes["k8s.node.name"] in ("n0", "n1")
    assert attributes["asched.attempt"] == 1
    assert attributes["asched.profile"] == "default-scheduler"
    points = inside(placed, tree)
    assert {"PreFilter", "Filter", "Score", "binding cycle"} <= set(points)
    fit = inside(points["Filter"], tree)["NodeResourcesFit"]
    assert (fit.attributes or {})["asched.status"] == "Success"
    bind = inside(points["binding cycle"], tree)["Bind"]
    assert set(inside(bind, tree)) == {"DefaultBinder"}

    refused = by_pod["big"].attributes or {}
    assert refused["asched.result"] == "rejected"
    assert "Insufficient cpu" in str(refused["asched.message"])
    assert "PostFilter" in inside(by_pod["big"], tree)

    async with open_journal(str(tmp_path / "journal.db"), read_only=True) as store:
        recorded = {stored.seq: stored.record async for stored in store.read()}
    for span in by_pod.values():
        about = span.attributes or {}
        record = recorded[int(str(about["asched.journal.seq"]))]
        assert getattr(record, "uid", "") == about["k8s.pod.uid"]


async def test_spans_lie_within_their_parents(tmp_path: Path) -> None:
    spans = await spans_of(tmp_path, 1.0, pods=5)
    by_id = {s.get_span_context().span_id: s for s in spans}  # type: ignore[union-attr]
    checked = 0
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        outer = by_id.get(span.parent.span_id) if span.parent else None
        if outer is None or span.name == "binding cycle":
            continue  # which follows on its attempt
        assert outer.start_time is not None
        assert outer.end_time is not None
        assert outer.start_time <= span.start_time
        assert span.end_time <= outer.end_time
        checked += 1
    assert checked > 20


async def test_traced_share_is_deterministic(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def traced_pods(spans: tuple[ReadableSpan, ...]) -> list[str]:
        return sorted(str((s.attributes or {})["k8s.pod.name"]) for s in children(spans)[0])

    first = traced_pods(await spans_of(tmp_path / "a", 0.3, pods=40))
    assert 0 < len(first) < 30
    assert traced_pods(await spans_of(tmp_path / "b", 0.3, pods=40)) == first


class Stuck(SpanProcessor):
    """Waits for a collector that does not answer."""

    def __init__(self) -> None:
        self.answered = threading.Event()

    def shutdown(self) -> None:
        self.answered.wait()


async def test_unresponsive_collector_does_not_delay_stop() -> None:
    stuck = Stuck()
    assert not await closed(AttemptTracer(1.0, stuck), timeout_s=0.05)
    stuck.answered.set()
    assert await closed(AttemptTracer(1.0, stuck))


async def test_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if it were not installed, whether it is or not.
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    metrics = Metrics()
    with pytest.raises(
        TracingUnavailableError, match=r"tracing.samplingRatio needs asched\[otel\]"
    ):
        async with traced(0.5, metrics.cycle_sinks):
            pytest.fail("it traces to nowhere")
    async with traced(0.0, metrics.cycle_sinks):
        assert metrics.cycle_sinks == [metrics.cycles]
