"""Opening a connection to a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp

from asched import __version__
from asched.kube.client import ApiClient
from asched.kube.credentials import CredentialSource, find_credentials
from asched.kube.http import HttpTransport
from asched.kube.pool import ConnectionPool
from asched.kube.timing import Clock, RequestBudget, RetryPolicy, SystemClock
from asched.kube.transport import RequestWatcher, Transport, WatchedTransport

USER_AGENT = f"asched/{__version__}"
MAX_CONNECTIONS = 128
"""Kept-alive connections at most, and as many again for watches."""
KEEPALIVE_S = 60.0


@asynccontextmanager
async def connect(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    qps: float | None = None,
    burst: int | None = None,
    watcher: RequestWatcher | None = None,
) -> AsyncIterator[ApiClient]:
    """A client for the cluster that ``kubeconfig`` (or the environment) names.

    ``qps`` requests a second, with ``burst`` at once, are sent at most; without ``qps`` there is no
    such limit. ``watcher`` is told of every request. Certificates are verified unless the kubeconfig
    says otherwise. Raises KubeConfigError.
    """
    clock = SystemClock()
    budget = RequestBudget(qps, burst or max(1, round(2 * qps)), clock) if qps else None
    source = find_credentials(kubeconfig, context)
    async with open_client(
        source, clock=clock, random=Random(), budget=budget, watcher=watcher
    ) as client:
        yield client


@asynccontextmanager
async def open_client(
    source: CredentialSource,
    *,
    clock: Clock,
    random: Random,
    budget: RequestBudget | None = None,
    retry: RetryPolicy | None = None,
    watcher: RequestWatcher | None = None,
) -> AsyncIterator[ApiClient]:
    """A client with all that it needs given: its credentials, time and randomness."""
    credentials = await source.load(clock.utc())
    connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S)
    pool = ConnectionPool(MAX_CONNECTIONS, KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        try:
            transport: Transport = HttpTransport(session, pool)
            if watcher is not None:
                transport = WatchedTransport(transport, watcher, clock)
            yield ApiClient(
                transport,
                source,
                credentials,
                clock=clock,
                random=random,
                budget=budget,
                retry=retry or RetryPolicy(),
            )
        finally:
            await pool.close()
