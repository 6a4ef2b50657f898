"""OpenTelemetry traces of scheduling attempts.

A span for the attempt holds one for each extension point, which holds one for each plugin. The
binding cycle has the same structure and belongs to the same trace. Requires the extra ``otel``,
which is imported only if traces are enabled. OpenTelemetry's environment variables
(``OTEL_EXPORTER_OTLP_ENDPOINT`` and others) set the destination.
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
from asched.daemon.telemetry.stopwatch import CycleSink, SampledCycle, TimedSpan
from asched.state.records import Assigned, AttemptFailed, ExtenderCallRequested, Rejected

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, SpanContext, Tracer

_MAX_OPEN_ATTEMPTS = 4096
"""Traces that wait for their binding cycle."""
_MAX_MESSAGE = 1024
CLOSE_TIMEOUT_S = 3.0
"""How long a stopping daemon sends the last traces."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AttributeValue = str | int | float | bool


class TracingUnavailableError(Exception):
    """Traces are enabled but cannot be exported; the text is one line."""


@asynccontextmanager
async def traced(ratio: float, sinks: list[CycleSink]) -> AsyncIterator[None]:
    """Export traces of ``ratio`` of the attempts during the block, as one of ``sinks``. Raises
    :class:`TracingUnavailableError` without the extra, unless ``ratio`` is 0."""
    if not ratio:
        yield
        return
    tracer = AttemptTracer(ratio, _exporter())
    sinks.append(tracer)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            if not await closed(tracer):
                log.warning("last traces not sent", timeout_s=CLOSE_TIMEOUT_S)


async def closed(tracer: AttemptTracer, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
    """Send the last traces; False on a timeout. The exporter's own timeout of 30 s is too long for
    a daemon that stops or has lost leadership."""
    closing = threading.Thread(target=tracer.close, name="last-traces", daemon=True)
    closing.start()
    await anyio.to_thread.run_sync(closing.join, timeout_s)
    return not closing.is_alive()


def _exporter() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise TracingUnavailableError(
            f"tracing.samplingRatio needs asched[otel], which is not installed ({error})"
        ) from None
    return BatchSpanProcessor(OTLPSpanExporter())


class AttemptTracer:
    """A :class:`~asched.daemon.telemetry.stopwatch.CycleSink` that creates spans."""

    numbered = True

    def __init__(self, ratio: float, processor: SpanProcessor) -> None:
        """``ratio``: the share of attempts to trace, 0 to 1."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider

        self.share = ratio
        ours = Resource({"service.name": "asched", "service.version": __version__})
        # The environment takes precedence.
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("asched", __version__)
        self._attempts: OrderedDict[tuple[str, int], SpanContext] = OrderedDict()

    def close(self) -> None:
        """Export the last spans."""
        self._provider.shutdown()

    def cycle(self, cycle: SampledCycle) -> None:
        from opentelemetry.trace import NonRecordingSpan, StatusCode, set_span_in_context

        # Spans need wall clock times.
        offset_ns = time.time_ns() - time.monotonic_ns()
        key = (cycle.pod.uid, cycle.attempt)
        context = None
        if cycle.decision is None and (before := self._attempts.pop(key, None)) is not None:
            context = set_span_in_context(NonRecordingSpan(before))
        name = "binding cycle" if cycle.decision is None else "scheduling attempt"
        root = self._tracer.start_span(
            name, context, attributes=_attributes(cycle), start_time=cycle.began_ns + offset_ns
        )
        if isinstance(cycle.decision, AttemptFailed):
            root.set_status(StatusCode.ERROR, cycle.decision.message[:_MAX_MESSAGE])
        for point in cycle.points:
            inner = [p for p in cycle.plugins if p.point == point.point]
            self._add_point(root, point, inner, offset_ns)
        root.end(cycle.ended_ns + offset_ns)
        if isinstance(cycle.decision, Assigned):
            self._attempts[key] = root.get_span_context()
            if len(self._attempts) > _MAX_OPEN_ATTEMPTS:
                self._attempts.popitem(last=False)

    def _add_point(
        self, root: Span, point: TimedSpan, plugins: Sequence[TimedSpan], offset_ns: int
    ) -> None:
        from opentelemetry.trace import set_span_in_context

        # The span of a point that is entered again covers the time between; `busy_us` does not.
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


def _attributes(cycle: SampledCycle) -> dict[str, AttributeValue]:
    pod = cycle.pod
    attributes: dict[str, AttributeValue] = {
        "k8s.namespace.name": pod.namespace,
        "k8s.pod.name": pod.name,
        "k8s.pod.uid": pod.uid,
        "asched.profile": cycle.profile,
        "asched.attempt": cycle.attempt,
    }
    if cycle.seq:
        attributes["asched.journal.seq"] = cycle.seq
    match cycle.decision:
        case Assigned():
            attributes["asched.result"] = "assigned"
            attributes["k8s.node.name"] = cycle.decision.node
            attributes["asched.feasible_nodes"] = cycle.decision.feasible_nodes
        case Rejected():
            attributes["asched.result"] = "rejected"
            attributes["asched.message"] = cycle.decision.message[:_MAX_MESSAGE]
            if cycle.decision.nominated_node:
                attributes["asched.nominated_node"] = cycle.decision.nominated_node
        case AttemptFailed():
            attributes["asched.result"] = "failed"
        case ExtenderCallRequested():
            attributes["asched.result"] = "extenders asked"
    return attributes
