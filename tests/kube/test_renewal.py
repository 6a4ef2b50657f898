"""Renewal of credentials that fails or hangs, and the condition of readiness."""

from __future__ import annotations

from datetime import datetime, timedelta

import anyio
import pytest
from structlog.testing import capture_logs

from asched.kube.client import RequestHealth
from asched.kube.errors import ApiError, CredentialPluginError
from asched.kube.transport import Credentials
from tests.kube.harness import (
    BEGIN,
    TIMEOUT_S,
    Answer,
    ManualClock,
    ScriptedServer,
    client_for,
    in_turn,
    refusal,
)

OK = Answer(body=b"{}")
EXPIRY = BEGIN + timedelta(seconds=600)
RENEW_AT = BEGIN + timedelta(seconds=570)


class Plugin:
    """A source that fails, or hangs until it is released."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.loads = 0
        self.fails = False
        self.hangs = False
        self.released = anyio.Event()

    async def load(self, now: datetime) -> Credentials:
        self.loads += 1
        if self.loads == 1:
            return Credentials(self._url, "Bearer old", renew_at=RENEW_AT, expires_at=EXPIRY)
        if self.hangs:
            await self.released.wait()
        if self.fails:
            raise CredentialPluginError("exec: plugin did not end within 30 s")
        return Credentials(self._url, "Bearer new")


async def test_valid_credentials_are_used_while_plugin_hangs() -> None:
    clock = ManualClock()
    async with ScriptedServer(in_turn(OK)).run() as server:
        source = Plugin(server.url)
        source.hangs = True
        async with client_for(server.url, clock, source=source) as client:
            clock.now_s = 575.0
            with anyio.fail_after(TIMEOUT_S):
                for _ in range(5):
                    await client.request("GET", "/api/v1/pods")
                assert client.problem() == ""
                source.released.set()
                while source.loads < 2 or not _uses(server, "new"):
                    await client.request("GET", "/api/v1/pods")
    assert source.loads == 2
    assert [asked.headers["Authorization"] for asked in server.asked][:5] == ["Bearer old"] * 5


def _uses(server: ScriptedServer, token: str) -> bool:
    return server.asked[-1].headers["Authorization"] == f"Bearer {token}"


async def test_requests_that_wait_for_expired_credentials_are_a_problem() -> None:
    clock = ManualClock()
    async with ScriptedServer(in_turn(OK)).run() as server:
        source = Plugin(server.url)
        source.hangs = True
        async with client_for(server.url, clock, source=source) as client:
            clock.now_s = 601.0
            with anyio.fail_after(TIMEOUT_S):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(client.request, "GET", "/api/v1/pods")
                    while source.loads < 2:
                        await anyio.lowlevel.checkpoint()
                    assert client.problem() == ""
                    clock.now_s += 10.0
                    assert client.problem() == "requests wait for credentials"
                    source.released.set()
            assert client.problem() == ""
    assert source.loads == 2, "one run for all requests"


async def test_failed_renewal_is_logged_and_retried_with_backoff() -> None:
    clock = ManualClock()
    async with ScriptedServer(in_turn(refusal(401, "Unauthorized"))).run() as server:
        source = Plugin(server.url)
        source.fails = True
        async with client_for(server.url, clock, source=source) as client:
            clock.now_s = 601.0
            loads = []
            with capture_logs() as logs:
                for _ in range(200):
                    with pytest.raises(ApiError, match="Unauthorized"):
                        await client.request("GET", "/api/v1/pods")
                    clock.now_s += 1.0
                    loads.append(source.loads)
            assert source.loads < 12, "delays up to a minute"
            assert client.problem() == "the credentials have expired and cannot be renewed"
            source.fails = False
            clock.now_s += 60.0
            with pytest.raises(ApiError), capture_logs() as later:
                await client.request("GET", "/api/v1/pods")
    failed = [entry for entry in logs if entry["event"] == "credentials not renewed"]
    assert len(failed) == loads[-1] - 1
    assert failed[0]["error"] == "exec: plugin did not end within 30 s"
    assert failed[-1]["retry_after_s"] >= 30
    assert "credentials renewed" in [entry["event"] for entry in later]


async def test_client_closes_while_plugin_hangs() -> None:
    clock = ManualClock()
    async with ScriptedServer(in_turn(OK)).run() as server:
        source = Plugin(server.url)
        source.hangs = True
        with anyio.fail_after(TIMEOUT_S):
            async with client_for(server.url, clock, source=source) as client:
                clock.now_s = 575.0
                await client.request("GET", "/api/v1/pods")


def test_requests_that_fail_for_ten_seconds_are_a_problem() -> None:
    clock = ManualClock()
    health = RequestHealth(clock)
    for status in (0, 401, 500, 503):
        health.request_finished("GET", "h", status, 0.0)
        clock.now_s += 9.0
        assert health.problem() == ""
        clock.now_s += 1.0
        assert health.problem() == "no request to the API server has succeeded for 10 s"
        health.request_finished("GET", "h", status, 0.0)
        assert health.problem() != ""
        health.request_finished("GET", "h", 404, 0.0)
        assert health.problem() == ""
