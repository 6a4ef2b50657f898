"""OpenTelemetry traces of attempts: a span for the attempt, one in it for each extension point, one in that
for each plugin; and the binding cycle, likewise, in the same trace.

Needs the extra ``otel``, which is imported when traces are asked for. Where they go is said by OpenTelemetry's
own environment variables (``OTEL_EXPORTER_OTLP_ENDPOINT`` and its like).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import structlog

from asched import __version__
from asched.daemon.telemetry.stopwatch import CycleSink, TimedSpan, WatchedCycle
from asched.state.records import Assigned, AttemptFailed, ExtenderAsked, Rejected

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, SpanContext, Tracer

_MOST_REMEMBERED = 4096
"""Attempts whose binding cycle has not ended."""
_LONGEST_MESSAGE = 1024
CLOSE_S = 3.0
"""How long a stopping daemon goes on sending traces."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AttributeValue = str | int | float | bool


class TracingUnavailableError(Exception):
    """Traces are asked for and cannot be made; the text is one line for the user."""


@asynccontextmanager
async def traced(ratio: float, sinks: list[CycleSink]) -> AsyncIterator[None]:
    """Export traces of ``ratio`` of the attempts during the block, as one of ``sinks``; with 0 nothing
    is done or needed.

    Raises :class:`TracingUnavailableError` without the extra.
    """
    if not ratio:
        yield
        return
    tracer = AttemptTracer(ratio, _exporting())
    sinks.append(tracer)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            if not await closed(tracer):
                log.warning("the last traces could not be sent", waited_s=CLOSE_S)


async def closed(tracer: AttemptTracer, within_s: float = CLOSE_S) -> bool:
    """Send what waits, and whether that came to an end in time. A collector that does not answer would
    hold a daemon that stops, or has lost leadership, for the exporter's 30 s."""
    closing = threading.Thread(target=tracer.close, name="last-traces", daemon=True)
    closing.start()
    await anyio.to_thread.run_sync(closing.join, within_s)
    return not closing.is_alive()


def _exporting() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise TracingUnavailableError(
            f"tracing.samplingRatio needs asched[otel], which is not installed ({error})"
        ) from None
    return BatchSpanProcessor(OTLPSpanExporter())


class AttemptTracer:
    """A :class:`~asched.daemon.telemetry.stopwatch.CycleSink` that makes spans."""

    numbered = True

    def __init__(self, ratio: float, processor: SpanProcessor) -> None:
        """``ratio`` of all attempts, 0 to 1, are traced."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider

        self.share = ratio
        ours = Resource({"service.name": "asched", "service.version": __version__})
        # What the environment says goes before.
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("asched", __version__)
        self._begun: OrderedDict[tuple[str, int], SpanContext] = OrderedDict()

    def close(self) -> None:
        """Export what waits, and end."""
        self._provider.shutdown()

    def cycle(self, watched: WatchedCycle) -> None:
        from opentelemetry.trace import NonRecordingSpan, StatusCode, set_span_in_context

        # Spans have times of the wall clock.
        offset_ns = time.time_ns() - time.monotonic_ns()
        key = (watched.pod.uid, watched.attempt)
        context = None
        if watched.decision is None and (before := self._begun.pop(key, None)) is not None:
            context = set_span_in_context(NonRecordingSpan(before))
        name = "binding cycle" if watched.decision is None else "scheduling attempt"
        root = self._tracer.start_span(
            name, context, attributes=_about(watched), start_time=watched.began_ns + offset_ns
        )
        if isinstance(watched.decision, AttemptFailed):
            root.set_status(StatusCode.ERROR, watched.decision.message[:_LONGEST_MESSAGE])
        for point in watched.points:
            inner = [p for p in watched.plugins if p.point == point.point]
            self._add_point(root, point, inner, offset_ns)
        root.end(watched.ended_ns + offset_ns)
        if isinstance(watched.decision, Assigned):
            self._begun[key] = root.get_span_context()
            if len(self._begun) > _MOST_REMEMBERED:
                self._begun.popitem(last=False)

    def _add_point(
        self, root: Span, point: TimedSpan, plugins: Sequence[TimedSpan], offset_ns: int
    ) -> None:
        from opentelemetry.trace import set_span_in_context

        # A point that was gone back to spans what was between; how long it took is said beside.
        began_ns = min([point.began_ns, *(plugin.began_ns for plugin in plugins)])
        ended_ns = max([point.ended_ns, *(plugin.ended_ns for plugin in plugins)])
        span = self._tracer.start_span(
            point.point,
            set_span_in_context(root),
            attributes={"asched.status": point.status, "asched.busy_us": point.busy_ns / 1e3},
            start_time=began_ns + offset_ns,
        )
        for plugin in plugins:
            inner = self._tracer.start_span(
                plugin.plugin,
                set_span_in_context(span),
                attributes={
                    "asched.plugin": plugin.plugin,
                    "asched.extension_point": plugin.point,
                    "asched.status": plugin.status,
                    "asched.calls": plugin.calls,
                    "asched.busy_us": plugin.busy_ns / 1e3,
                },
                start_time=plugin.began_ns + offset_ns,
            )
            inner.end(plugin.ended_ns + offset_ns)
        span.end(ended_ns + offset_ns)


def _about(watched: WatchedCycle) -> dict[str, AttributeValue]:
    pod = watched.pod
    attributes: dict[str, AttributeValue] = {
        "k8s.namespace.name": pod.namespace,
        "k8s.pod.name": pod.name,
        "k8s.pod.uid": pod.uid,
        "asched.profile": watched.profile,
        "asched.attempt": watched.attempt,
    }
    if watched.seq:
        attributes["asched.journal.seq"] = watched.seq
    match watched.decision:
        case Assigned():
            attributes["asched.result"] = "assigned"
            attributes["k8s.node.name"] = watched.decision.node
            attributes["asched.feasible_nodes"] = watched.decision.feasible
        case Rejected():
            attributes["asched.result"] = "rejected"
            attributes["asched.message"] = watched.decision.message[:_LONGEST_MESSAGE]
            if watched.decision.nominated_node:
                attributes["asched.nominated_node"] = watched.decision.nominated_node
        case AttemptFailed():
            attributes["asched.result"] = "failed"
        case ExtenderAsked():
            attributes["asched.result"] = "extenders asked"
    return attributes
