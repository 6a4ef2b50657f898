"""A leader loses leadership while plugins run: they are cancelled, and nothing is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from asched.config.file import parse
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.leadership import LeadershipLostError, candidate
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.startup import DaemonContext
from asched.framework.binding import BindingClient, Permission
from asched.framework.interface import PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.journal import open_journal
from asched.kube.connection import connect
from tests.daemon.world import KUBE, World, registry_with, world

LEASE = LeaseName("kube-system", "asched")
CONFIG = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: BindOnCancel}]}}\n"


class BindOnCancel(PreBindPlugin):
    """Blocks, and tries to bind the pod when it is cancelled."""

    name: ClassVar[str] = "BindOnCancel"
    api_version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Permission]] = frozenset({Permission.BIND})
    begun: ClassVar[anyio.Event]
    ended: ClassVar[list[str]]

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.append(client.context.cancel_reason)
            with anyio.CancelScope(shield=True):
                await client.bind(pod, node_name)
        return SUCCESS


@asynccontextmanager
async def leader(w: World) -> AsyncIterator[Daemon]:
    registry = registry_with(BindOnCancel)
    timing = LeaseTiming(30, 20, 0.1)
    async with (
        open_journal(str(w.journal)) as store,
        connect(w.kubeconfig) as client,
        connect(w.kubeconfig) as lease_client,
        candidate(LeaderElector(lease_client, LEASE, "self", timing)) as leadership,
        running_daemon(
            DaemonContext(parse(CONFIG, "test", registry), registry, client, store),
            leadership=leadership,
        ) as daemon,
    ):
        yield daemon


def transfer_lease(w: World) -> None:
    spec = {"spec": {"holderIdentity": "another"}}
    w.cluster.patch("leases.coordination.k8s.io", LEASE.name, spec, namespace=LEASE.namespace)


async def test_lost_leadership_cancels_plugins_without_writes(tmp_path: Path) -> None:
    BindOnCancel.begun, BindOnCancel.ended = anyio.Event(), []
    written: list[tuple[str, str]] = []

    def on_request(verb: str, resource: str) -> None:
        if verb not in ("get", "list", "watch") and not resource.startswith("leases"):
            written.append((verb, resource))

    async with world(tmp_path, nodes=1) as w:
        w.add_pod("p")
        with (
            pytest.RaisesGroup(LeadershipLostError, flatten_subgroups=True),
            anyio.fail_after(60),
        ):
            async with leader(w):
                await BindOnCancel.begun.wait()
                w.faults.on_request = on_request
                transfer_lease(w)
                await anyio.sleep_forever()
        assert BindOnCancel.ended == ["leadership was lost"]
        assert written == []
        assert not w.node_of("p")
