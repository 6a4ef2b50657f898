"""Reflectors with the embedded API server and one kind of fault at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.kube.reflector import ClusterWatch, Reflector, ReflectorSettings
from asched.model.resources import Resource
from tests.kube.harness import TIMEOUT_S, ManualClock, View, client_for, running


class Site:
    def __init__(self, server: ApiServer, view: View, clock: ManualClock, reflector: Reflector):
        self.server = server
        self.cluster = server.cluster
        self.faults = server.faults
        self.view = view
        self.clock = clock
        self.reflector = reflector

    def create(self, *names: str) -> None:
        for name in names:
            self.cluster.create("nodes", {"metadata": {"name": name}})

    async def shows(self, *names: str) -> None:
        await self.view.until(lambda: self.view.names(Resource.NODES) == set(names))


@asynccontextmanager
async def site(*, existing: int = 0, bookmark_interval_s: float = 60.0) -> AsyncIterator[Site]:
    clock, view = ManualClock(), View()
    server = ApiServer(EmbeddedCluster(seed=1), bookmark_interval_s=bookmark_interval_s)
    for number in range(existing):
        server.cluster.create("nodes", {"metadata": {"name": f"n{number}"}})
    async with server.run(), client_for(server.url, clock) as client:
        reflector = Reflector(client, Resource.NODES, view, ReflectorSettings(page_limit=7))
        async with running(reflector.run):
            await view.until(lambda: reflector.synced)
            yield Site(server, view, clock, reflector)


async def test_streams_that_close_after_one_event() -> None:
    async with site() as s:
        s.faults.watch_closes_after_events = 1
        names = [f"n{number}" for number in range(200)]
        s.create(*names)
        await s.shows(*names)
        for name in names[:100]:
            s.cluster.delete("nodes", name)
        await s.shows(*names[100:])
        assert s.reflector.counts.lists == 1
        assert 300 <= s.reflector.counts.watches <= 303
        assert s.clock.sleeps_s == []


async def test_object_deleted_during_expiry_is_gone_after_relist() -> None:
    async with site(existing=20) as s:
        s.faults.watch_closes_after_events = 1
        s.faults.drop(count=3, verb="watch")
        s.create("last-seen")
        for number in range(15):
            s.cluster.delete("nodes", f"n{number}")
        s.cluster.expire_history()
        await s.shows("n15", "n16", "n17", "n18", "n19", "last-seen")
        assert s.reflector.counts.lists == 2


async def test_list_of_many_pages_is_delivered_once() -> None:
    async with site(existing=30) as s:
        assert s.server.requests_served >= 5
        assert len(s.view.of(Resource.NODES)) == 30
        assert len(s.view.batches) == 1


@pytest.mark.parametrize("code", [429, 500, 503, 504])
async def test_server_with_temporary_errors(code: int) -> None:
    async with site() as s:
        s.faults.watch_closes_after_events = 1
        s.faults.respond(code, count=4, retry_after_s=2)
        s.create("a", "b")
        await s.shows("a", "b")
        assert s.faults.injected == 4
        assert s.clock.now_s >= (8 if code == 429 else 3)


async def test_malformed_lines_lose_nothing() -> None:
    async with site() as s:
        s.faults.malform_watch_lines(5)
        names = [f"n{number}" for number in range(50)]
        s.create(*names)
        await s.shows(*names)
        assert s.reflector.counts.lists == 1


async def test_slow_response_is_awaited() -> None:
    async with site() as s:
        s.faults.watch_closes_after_events = 1
        s.faults.delay(0.05, count=2)
        s.create("a", "b", "c")
        await s.shows("a", "b", "c")
        assert s.faults.injected >= 1
        assert s.reflector.counts.failures == 0


async def test_idle_watch_advances_with_bookmarks() -> None:
    async with site(bookmark_interval_s=0.01) as s:
        for number in range(50):
            s.cluster.create("namespaces", {"metadata": {"name": f"other{number}"}})
        with anyio.fail_after(TIMEOUT_S):
            while s.reflector.resource_version != str(s.cluster.revision):
                await anyio.lowlevel.checkpoint()
        assert len(s.view.batches) == 1


async def test_server_restart() -> None:
    clock, view = ManualClock(), View()
    server = ApiServer(EmbeddedCluster(seed=1))
    async with server.run():
        port = int(server.url.rsplit(":", 1)[1])
        async with client_for(server.url, clock) as client:
            watch = ClusterWatch(client, view, [Resource.NODES])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch.run)
                await view.until(lambda: all(r.synced for r in watch.reflectors))
                tasks.cancel_scope.cancel()
    server.cluster.create("nodes", {"metadata": {"name": "a"}})
    async with client_for(f"http://127.0.0.1:{port}", clock) as client:
        watch = ClusterWatch(client, view, [Resource.NODES])
        async with running(watch.run):
            with anyio.fail_after(TIMEOUT_S):
                while not clock.sleeps_s:
                    await anyio.lowlevel.checkpoint()
            async with server.run(port=port):
                await view.until(lambda: view.names(Resource.NODES) == {"a"})
