"""A configuration as the scheduler of a simulation."""

from __future__ import annotations

from asched.config.file import Configuration
from asched.config.resolve import without_ignored_resources
from asched.framework.runtime.profile import evaluate_in_process
from asched.simulator.loop import Latencies, Scheduler
from asched.state.records import QueueSettings


def scheduler_of(configuration: Configuration, latencies: Latencies) -> Scheduler:
    """What a daemon with that configuration would decide with; extenders are left out."""
    scheduler, engine = configuration.scheduler, configuration.settings.engine
    return Scheduler(
        profiles=evaluate_in_process(without_ignored_resources(configuration.profiles, scheduler.extenders)),
        sessions=configuration.sessions,
        queue=QueueSettings(
            scheduler.pod_initial_backoff_seconds,
            scheduler.pod_max_backoff_seconds,
            engine.unschedulable_flush_interval.total_seconds(),
        ),
        seed=engine.seed,
        latencies=latencies,
    )
