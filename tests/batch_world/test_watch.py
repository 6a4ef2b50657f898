"""Missing API groups are skipped, and watched when installed later."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.core.inputs import Change, Listed, Upserted
from asched.kube.reflector import ClusterWatch
from asched.model.resources import GroupResource, Resource, in_order_of_listing
from tests.batch_world.jobs import QUEUES
from tests.batch_world.manifests import install_crds
from tests.daemon.world import TIMEOUT_S
from tests.kube.harness import ManualClock, client_for, running


class Heard:
    """The changes of a watch."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._more = anyio.Event()

    def put_changes(self, batch: Sequence[Change]) -> None:
        self.changes += batch
        self._more.set()
        self._more = anyio.Event()

    async def wait_for_capacity(self) -> None:
        """Always has room."""

    async def until_listed(self, count: int) -> None:
        with anyio.fail_after(TIMEOUT_S):
            while sum(isinstance(change, Listed) for change in self.changes) < count:
                await self._more.wait()

    async def until_a_queue(self) -> str:
        with anyio.fail_after(TIMEOUT_S):
            while True:
                for change in self.changes:
                    things = change.objects if isinstance(change, Listed) else ()
                    if isinstance(change, Upserted):
                        things = (change.object,)
                    for thing in things:
                        if change.resource is GroupResource.INCUBATOR_QUEUES:
                            return thing.name
                await self._more.wait()


async def test_later_installed_definition_is_watched() -> None:
    heard, server = Heard(), ApiServer(EmbeddedCluster(seed=1))
    resources = in_order_of_listing(frozenset(GroupResource))
    async with server.run(), client_for(server.url, ManualClock()) as client:
        watch = ClusterWatch(client, heard, resources)
        async with running(watch.run):
            await heard.until_listed(len(resources))
            assert all(reflector.synced for reflector in watch.reflectors)
            listed = [change.resource for change in heard.changes if isinstance(change, Listed)]
            assert {*listed[: len(resources)]} == {*resources}
            assert listed[len(resources) - 1] is Resource.PODS
            install_crds(server.cluster)
            server.cluster.create(QUEUES, {"metadata": {"name": "gold"}, "spec": {"weight": 2}})
            assert await heard.until_a_queue() == "gold"
