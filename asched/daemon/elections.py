"""What a configuration says of the election of a leader."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asched.daemon.config_file import Configuration
from asched.daemon.leadership import LeaderMetrics, Leadership, candidate
from asched.daemon.metrics import Metrics
from asched.framework.config import LeaderElection
from asched.kube.client import ApiClient
from asched.kube.election import LeaseTiming
from asched.kube.lease import LeaderElector, LeaseName


def election_of(configuration: Configuration) -> LeaderElection | None:
    """The election to take part in; None where one is not asked for."""
    election = configuration.settings.leader_election or configuration.scheduler.leader_election
    return election if election.leader_elect else None


@asynccontextmanager
async def taking_part(
    election: LeaderElection, client: ApiClient, metrics: Metrics, instance: str
) -> AsyncIterator[Leadership]:
    """Be a candidate during the block, as :func:`~asched.daemon.leadership.candidate`. ``client`` should
    be of no other use: a renewal must not wait its turn behind bindings. ``instance`` names the process."""
    elector = LeaderElector(
        client,
        LeaseName(election.resource_namespace, election.resource_name),
        # No name of its own is enough, so that client-go adds a random one, too: a container that was restarted has the host name and the process number
        # of the one before, but is not the one that holds the lease.
        f"{instance}_{uuid.uuid4()}",
        LeaseTiming(
            election.lease_duration.total_seconds(),
            election.renew_deadline.total_seconds(),
            election.retry_period.total_seconds(),
        ),
    )
    metrics.show(LeaderMetrics(elector))
    async with candidate(elector) as leadership:
        yield leadership
