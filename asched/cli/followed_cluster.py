"""A live cluster for commands that plan on its state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from asched.cli.errors import CommandError
from asched.cli.options import log_warnings, read_configuration
from asched.cli.run import ClusterOptions
from asched.cli.serve import load_and_log_configuration, open_cluster_client
from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.consolidation.live import FollowedCluster
from asched.daemon.process import Runtime
from asched.daemon.startup import annotations_of, watched_resources
from asched.daemon.telemetry.metrics import Metrics
from asched.journal.store import JournalStore
from asched.kube.client import ApiClient
from asched.kube.reflector import ClusterWatch


class LiveCluster(NamedTuple):
    """A cluster that is followed by watches, and the client that reads it."""

    followed: FollowedCluster
    client: ApiClient


def configuration_of(options: ClusterOptions, registry: PluginRegistry) -> Configuration:
    """The configuration in the options; logs its warnings. Raises ConfigFileError."""
    if options.debug:
        return load_and_log_configuration(options, registry)
    log_warnings()
    return read_configuration(options.config, registry, options.feature_gates)


@asynccontextmanager
async def followed_cluster(
    options: ClusterOptions,
    configuration: Configuration,
    registry: PluginRegistry,
    timeout_s: float,
    journal: JournalStore | None = None,
) -> AsyncIterator[LiveCluster]:
    """The cluster once everything in it was read. ``journal``: claimed for what happens.

    Raises :class:`CommandError` after ``timeout_s``.
    """
    resources = watched_resources(configuration.profiles, (), registry.load)
    async with open_cluster_client(configuration, options, Metrics()) as client:
        runtime = Runtime.of_this_process()
        cluster = await FollowedCluster.begin(
            configuration, registry.load, runtime.clock, resources, journal, runtime.instance
        )
        annotations = annotations_of(configuration.profiles, registry.load)
        watch = ClusterWatch(client, cluster, resources, annotations=annotations)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            tasks.start_soon(cluster.run)
            missing = await cluster.synced(timeout_s)
            if missing:
                raise CommandError(f"the cluster was not read within {timeout_s:g} s: {missing}")
            yield LiveCluster(cluster, client)
            tasks.cancel_scope.cancel()
