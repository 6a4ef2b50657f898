"""A replica in the process of the test, and its Lease."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from asched.config.file import parse
from asched.config.registry import PluginRegistry
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.leadership import Leadership, candidate
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.ha.replica import Replica, running_replica
from asched.daemon.startup import DaemonContext
from asched.journal.store import JournalStore
from asched.kube.connection import connect
from tests.daemon.world import World

LEASE = LeaseName("kube-system", "asched")
LEASES = "leases.coordination.k8s.io"


class Running(NamedTuple):
    replica: Replica
    leadership: Leadership


@asynccontextmanager
async def running(w: World, store: JournalStore, *, shared: bool) -> AsyncIterator[Running]:
    """A replica named ``it``. It ends with the block, like a process on SIGTERM."""
    registry = PluginRegistry.discover()
    async with (
        connect(w.kubeconfig) as client,
        connect(w.kubeconfig) as lease_client,
        candidate(LeaderElector(lease_client, LEASE, "it", LeaseTiming())) as leadership,
        running_replica(
            DaemonContext(
                parse("", "test", registry, empty_is_defaults=True), registry, client, store
            ),
            leadership,
            shared=shared,
        ) as replica,
    ):
        yield Running(replica, leadership)


def holder(w: World) -> str:
    lease = w.cluster.get(LEASES, LEASE.name, namespace=LEASE.namespace)
    found: str = lease["spec"]["holderIdentity"]
    return found
