"""Requests: retries, failures, credentials and rate limits."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.kube.client import RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.timing import MAX_RETRY_AFTER_S, Backoff, RequestBudget, RetryPolicy
from asched.kube.transport import Credentials
from tests.kube.harness import (
    Answer,
    Asked,
    FixedCredentials,
    ManualClock,
    ScriptedServer,
    client_for,
    in_turn,
    refusal,
)

OK = Answer(body=b"{}")


async def ask(
    clock: ManualClock, *answers: Answer, method: str = "GET", attempts: int = 5
) -> tuple[bytes | ApiError | NoResponseError, list[Asked]]:
    """Send one request to scripted responses; return its result and the received requests."""
    async with (
        ScriptedServer(in_turn(*answers)).run() as server,
        client_for(server.url, clock, retry=RetryPolicy(attempts=attempts)) as client,
    ):
        try:
            body = b"{}" if method != "GET" else None
            return await client.request(method, "/api/v1/pods", body=body), server.asked
        except (ApiError, NoResponseError) as error:
            return error, server.asked


async def test_throttled_post_is_retried_after_retry_after() -> None:
    clock = ManualClock()
    put_off = refusal(429, "TooManyRequests", Retry_After="7")
    answer, asked = await ask(clock, put_off, OK, method="POST")
    assert answer == b"{}"
    assert len(asked) == 2
    assert 7.0 <= clock.now_s <= 7.0 * 1.2


async def test_get_is_retried_after_server_errors_with_backoff() -> None:
    clock = ManualClock()
    answer, asked = await ask(clock, refusal(500, ""), refusal(503, ""), refusal(504, ""), OK)
    assert answer == b"{}"
    assert len(asked) == 4
    nominal = RetryPolicy().initial_s
    for exponent, slept in enumerate(clock.sleeps_s):
        assert nominal * 2**exponent / 2 <= slept <= nominal * 2**exponent


@pytest.mark.parametrize("failure", [refusal(500, "InternalError"), Answer(drop=True)])
async def test_post_with_unknown_result_is_not_retried(failure: Answer) -> None:
    clock = ManualClock()
    answer, asked = await ask(clock, failure, OK, method="POST")
    assert isinstance(answer, ApiError | NoResponseError)
    assert not isinstance(answer, NoResponseError) or answer.sent
    assert len(asked) == 1
    assert clock.sleeps_s == []


async def test_get_is_retried_after_dropped_connection() -> None:
    answer, _ = await ask(ManualClock(), Answer(drop=True), OK)
    assert answer == b"{}"


async def test_connection_dropped_within_body_is_no_response() -> None:
    answer, asked = await ask(ManualClock(), Answer(body=[b'{"kind":'], drop=True), attempts=1)
    assert isinstance(answer, NoResponseError)
    assert answer.sent
    assert len(asked) == 1


async def test_client_errors_are_not_retried() -> None:
    answer, asked = await ask(ManualClock(), refusal(422, "Invalid"))
    assert isinstance(answer, ApiError)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert len(asked) == 1


async def test_attempts_are_bounded() -> None:
    clock = ManualClock()
    answer, asked = await ask(clock, refusal(500, ""), attempts=4)
    assert isinstance(answer, ApiError)
    assert len(asked) == 4
    assert len(clock.sleeps_s) == 3


async def test_refused_connection_is_retried_for_every_method() -> None:
    async with ScriptedServer(in_turn(OK)).run() as server:
        url = server.url
    clock = ManualClock()
    async with client_for(url, clock, retry=RetryPolicy(attempts=3)) as client:
        with pytest.raises(NoResponseError) as caught:
            await client.request("POST", "/api/v1/pods", body=b"{}")
    assert not caught.value.sent
    assert len(clock.sleeps_s) == 2


async def test_slow_server_times_out() -> None:
    async with (
        ScriptedServer(in_turn(Answer(hang=True))).run() as server,
        client_for(server.url, ManualClock(), retry=RetryPolicy(attempts=1)) as client,
    ):
        with pytest.raises(NoResponseError) as caught:
            await client.request("GET", "/api/v1/pods", options=RequestOptions(timeout_s=0.05))
    assert caught.value.sent
    assert "timed out" in str(caught.value)


async def test_requests_have_user_agent_and_accept_json() -> None:
    _, (asked,) = await ask(ManualClock(), OK, method="POST")
    assert asked.headers["User-Agent"].startswith("asched/")
    assert asked.headers["Accept"] == "application/json"
    assert asked.headers["Content-Type"] == "application/json"
    assert "Authorization" not in asked.headers


# -- failures ---------------------------------------------------------------------------------

RECORDED = {
    "bad-token": (401, "Unauthorized"),
    "forbidden": (403, "Forbidden"),
    "not-found-path": (404, "NotFound"),
    "bind-gated-pod": (409, "Conflict"),
    "bind-empty-node": (500, ""),
    "patch-bad-content-type": (415, "UnsupportedMediaType"),
    "list-exact-future-rv": (504, "Timeout"),
    "list-bad-continue": (400, "BadRequest"),
    "list-continue-expired-410": (410, "Expired"),
    "crd-list-before": (404, ""),
}


@pytest.fixture(scope="session")
def exchanges(shared_dir: Path) -> dict[str, dict[str, Any]]:
    recorded = json.loads((shared_dir / "apiserver-1.36" / "exchanges.json").read_bytes())
    return {exchange["name"]: exchange["response"] for exchange in recorded}


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_failures_are_decoded(
    name: str, exchanges: dict[str, dict[str, Any]]
) -> None:
    response = exchanges[name]
    body = response["body"]
    raw = body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    headers = {"Retry-After": response["Retry-After"]} if "Retry-After" in response else {}
    error, _ = await ask(ManualClock(), Answer(response["status"], raw, headers), attempts=1)
    assert isinstance(error, ApiError)
    assert (error.status, error.reason) == RECORDED[name]
    assert error.message == (body.strip() if isinstance(body, str) else body["message"])
    assert error.expired is (error.status == 410)
    assert error.retry_after_s == (float(headers["Retry-After"]) if headers else None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no message"),
        (b"<html>\n<b>Bad  gateway</b>\n", "<html> <b>Bad gateway</b>"),
        (b"\xff", "\ufffd"),
        (b'{"message":null,"details":null,"metadata":null}', "no message"),
        (b'{"code":"x"}', '{"code":"x"}'),
    ],
)
def test_body_without_status_gives_one_line_message(body: bytes, message: str) -> None:
    error = ApiError.from_response(502, body, "soon")
    assert (error.status, error.message, error.retry_after_s) == (502, message, None)
    assert "\n" not in str(error)


# -- credentials ------------------------------------------------------------------------------


class Tokens:
    """Credentials with another token each time."""

    def __init__(self, url: str, *tokens: str, renew_at: datetime | None = None) -> None:
        self._url = url
        self._tokens = list(tokens)
        self._renew_at = renew_at
        self.loads = 0

    async def load(self, now: datetime) -> Credentials:
        self.loads += 1
        token = self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]
        return Credentials(self._url, f"Bearer {token}", renew_at=self._renew_at)


def only(token: str) -> Any:
    def script(asked: Asked) -> Answer:
        good = asked.headers.get("Authorization") == f"Bearer {token}"
        return OK if good else refusal(401, "Unauthorized")

    return script


async def test_rejected_token_is_renewed_once_and_request_retried() -> None:
    async with ScriptedServer(only("new")).run() as server:
        source = Tokens(server.url, "old", "new")
        clock = ManualClock()
        async with client_for(server.url, clock, source=source) as client:
            clock.now_s = 60.0
            assert await client.request("POST", "/api/v1/pods", body=b"{}") == b"{}"
            assert await client.request("GET", "/api/v1/pods") == b"{}"
    assert source.loads == 2
    assert len(server.asked) == 3


async def test_permanently_rejected_token_is_renewed_at_intervals() -> None:
    async with ScriptedServer(only("none")).run() as server:
        source = Tokens(server.url, "a", "b")
        clock = ManualClock()
        async with client_for(server.url, clock, source=source) as client:
            clock.now_s = 60.0
            for _ in range(10):
                with pytest.raises(ApiError, match="Unauthorized"):
                    await client.request("GET", "/api/v1/pods")
    assert source.loads == 2


async def test_requests_through_proxy_are_complete() -> None:
    async with ScriptedServer(in_turn(refusal(429, "", Retry_After="3"), OK)).run() as proxy:
        away = Credentials("http://api.invalid/prefix", "Bearer t", proxy=proxy.url)
        clock = ManualClock()
        async with client_for("", clock, source=FixedCredentials(away)) as client:
            assert await client.request("POST", "/api/v1/pods", body=b"{}") == b"{}"
    assert [asked.path for asked in proxy.asked] == ["/prefix/api/v1/pods"] * 2
    assert proxy.asked[1].headers["Host"] == "api.invalid"
    assert proxy.asked[1].headers["Authorization"] == "Bearer t"
    assert proxy.asked[1].body == b"{}"
    assert clock.sleeps_s[0] >= 3.0


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_password_of_a_proxy_is_sent_and_not_shown(scheme: str) -> None:
    sent: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(await reader.readuntil(b"\r\n\r\n"))
        body = b"not HTTP at all" if scheme == "http" else b"HTTP/1.1 407 Denied\r\n\r\n"
        writer.write(body)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        address = "{}:{}".format(*proxy.sockets[0].getsockname())
        url = f"http://me:canary@{address}"
        away = Credentials(f"{scheme}://api.invalid", proxy=url)
        async with client_for("", ManualClock(), source=FixedCredentials(away)) as client:
            with pytest.raises(NoResponseError) as caught:
                await client.request("POST", "/api/v1/pods", body=b"{}")
    assert "canary" not in str(caught.value)
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:canary") in sent[0]


async def test_token_is_renewed_before_expiry() -> None:
    clock = ManualClock()
    async with ScriptedServer(in_turn(OK)).run() as server:
        expiry = clock.utc().replace(minute=10)
        source = Tokens(server.url, "a", "b", renew_at=expiry)
        async with client_for(server.url, clock, source=source) as client:
            await client.request("GET", "/api/v1/pods")
            clock.now_s = 601.0
            await client.request("GET", "/api/v1/pods")
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer a", "Bearer b"]


# -- backoff and rate limit -------------------------------------------------------------------


@given(st.integers(0, 2**32), st.lists(st.none() | st.floats(0, 1e6), max_size=20))
def test_backoff_grows_to_limit_and_never_vanishes(seed: int, asked: list[float | None]) -> None:
    policy = RetryPolicy(initial_s=0.1, factor=2, max_s=5)
    backoff = Backoff(policy, Random(seed))
    for count, at_least_s in enumerate(asked):
        pause_s = backoff.next_s(at_least_s)
        nominal_s = min(0.1 * 2**count, 5)
        told_s = min(at_least_s or 0.0, MAX_RETRY_AFTER_S)
        assert max(nominal_s / 2, told_s) <= pause_s <= max(nominal_s, told_s * 1.2)
    backoff.reset()
    assert backoff.next_s() <= 0.1


async def test_budget_allows_burst_then_rate() -> None:
    clock = ManualClock()
    budget = RequestBudget(qps=10, burst=5, clock=clock)
    for _ in range(25):
        await budget.take()
    assert clock.now_s == pytest.approx(2.0)
    assert len(clock.sleeps_s) == 20


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (5, 0)])
def test_empty_budget_is_rejected(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="qps must be positive"):
        RequestBudget(qps, burst, ManualClock())
