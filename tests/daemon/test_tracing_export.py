"""Traces as a collector receives them, over OTLP/HTTP; needs the extra ``otel``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from asched.daemon.telemetry.metrics import Metrics
from asched.daemon.telemetry.tracing import traced
from tests.daemon.world import world


class Collector:
    """An OpenTelemetry collector that keeps what it is sent. Made by :func:`collector`."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.resources: list[dict[str, str]] = []
        self.spans: list[Any] = []

    async def receive(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
            ExportTraceServiceResponse,
        )

        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        export = ExportTraceServiceRequest.FromString(body)
        for group in export.resource_spans:
            self.resources.append(texts(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans += scope.spans
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


def texts(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", made.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_spans_arrive_at_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    metrics = Metrics()
    async with collector() as c:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        async with (
            traced(1.0, metrics.cycle_sinks),
            world(tmp_path, nodes=2) as w,
            w.daemon(metrics=metrics),
        ):
            pod = w.add_pod("p")
            await w.until(lambda: w.node_of("p") != "")
    by_name = {span.name: span for span in c.spans}
    attempt, binding = by_name["scheduling attempt"], by_name["binding cycle"]
    attributes = texts(attempt.attributes)
    assert attributes["k8s.pod.uid"] == pod["metadata"]["uid"]
    assert attributes["asched.result"] == "assigned"
    assert by_name["Filter"].parent_span_id == attempt.span_id
    assert by_name["NodeResourcesFit"].trace_id == attempt.trace_id
    assert (binding.trace_id, binding.parent_span_id) == (attempt.trace_id, attempt.span_id)
    assert by_name["DefaultBinder"].parent_span_id == by_name["Bind"].span_id
    assert attempt.start_time_unix_nano < binding.end_time_unix_nano
    for resource in c.resources:
        assert resource["service.name"] == "asched"
        assert resource["deployment.environment"] == "test"
