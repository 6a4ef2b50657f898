"""The embedded cluster as a service of its own: what ``asched apiserver`` runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from asched.apiserver.auth import ADMIN, SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.faults import Faults
from asched.apiserver.http import HOST, ApiServer, TlsFiles, admin_and_scheduler_tokens
from asched.apiserver.kubelet import Kubelets, KubeletTimings, simulated_nodes


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve and where."""

    host: str = HOST
    port: int = 0
    """0 takes a free one."""
    tls: TlsFiles | None = None
    """None serves plain HTTP."""
    nodes: int = 0
    """Simulated nodes to begin with."""
    kubeconfig: Path | None = None
    """Where to write the administrator's kubeconfig."""
    scheduler_kubeconfig: Path | None = None
    """Where to write one with just kube-scheduler's permissions; turns authentication on."""
    faults: str = ""
    """As :meth:`Faults.parse` takes them."""
    kubelets: bool = True
    timings: KubeletTimings = field(default_factory=lambda: KubeletTimings(heartbeat_s=10.0))


async def serve_forever(
    options: ServeOptions, *, on_ready: Callable[[ApiServer], None] = lambda server: None
) -> None:
    """Serve an embedded cluster until cancelled; ``on_ready`` hears when it listens.

    Raises OSError for an address that cannot be had or a kubeconfig that cannot be written,
    ValueError for faults not understood, an address beyond this machine, or what is no certificate
    with its key.
    """
    cluster = EmbeddedCluster()
    for node in simulated_nodes(options.nodes, ready_since=cluster.api.now_text()):
        cluster.create("nodes", node)
    tokens = None
    if options.scheduler_kubeconfig is not None:
        tokens = admin_and_scheduler_tokens(secrets.token_urlsafe(24), secrets.token_urlsafe(24))
    server = ApiServer(cluster, faults=Faults.parse(options.faults), tokens=tokens)
    async with server.run(options.host, options.port, options.tls):
        # Before the task group, so that its failure reaches the caller as it is.
        if options.kubeconfig is not None:
            server.kubeconfig(options.kubeconfig, user=ADMIN)
        if options.scheduler_kubeconfig is not None:
            server.kubeconfig(options.scheduler_kubeconfig, user=SCHEDULER)
        async with anyio.create_task_group() as group:
            if options.kubelets:
                group.start_soon(Kubelets(cluster, options.timings).run)
            on_ready(server)
            await anyio.sleep_forever()
