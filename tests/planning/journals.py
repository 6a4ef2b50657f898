"""Journals with checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asched.cli.simulation import JournalWriter
from asched.journal.checkpoints import write_checkpoints
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.planning.workloads import default_scheduler
from asched.simulator.expansion import expand
from asched.simulator.loop import Simulation
from asched.simulator.scenario import read_scenario
from asched.state.records import AnyRecord
from tests.audit.recording import BEGIN_NS, REGISTRY

SCENARIO = {
    "apiVersion": "asched.dev/v1",
    "kind": "Scenario",
    "nodes": [
        {"name": "large", "count": 4, "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
        {"name": "small", "count": 2, "allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}},
    ],
    "priorityClasses": {"urgent": 100},
    "pods": [
        {
            "name": "web",
            "namespace": "shop",
            "count": 40,
            "template": {
                "spec": {
                    "containers": [
                        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
                    ]
                }
            },
            "arrival": {"poisson": "20s"},
            "lifetime": {"exponential": "15m"},
        },
        {
            "name": "train",
            "count": 8,
            "template": {
                "spec": {
                    "priorityClassName": "urgent",
                    "containers": [
                        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
                    ],
                }
            },
            "arrival": {"after": "3m", "poisson": "60s"},
            "lifetime": {"fixed": "6m"},
        },
    ],
    "events": [{"at": "8m", "drain": "large-1"}, {"at": "12m", "uncordon": "large-1"}],
}
"""Pods of two classes that wait for each other, preemption, and a drained node."""


async def simulated_journal(path: Path, every: int = 30) -> None:
    """Write the journal of the scenario, with a checkpoint every ``every`` records."""
    scheduler = default_scheduler(REGISTRY)
    trace = expand(read_scenario(SCENARIO), "default-scheduler")
    async with open_journal(str(path)) as store:
        writer = await JournalWriter.claim(store, trace.begin_ns)
        for turn in Simulation(trace, scheduler, REGISTRY.load).turns():
            await writer.add(turn)
        await writer.flush()
        await write_checkpoints(store, REGISTRY.load, every=every)


async def stored(records: Sequence[AnyRecord]) -> MemoryStore:
    """A journal in memory."""
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=BEGIN_NS)
    await store.append(records, written_at_ns=BEGIN_NS)
    return store
