"""The daemon under injected faults, and the reproducibility of seeds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from asched.comparer.cluster import ClusterComparer
from asched.daemon.effects.dispatcher import EffectDispatcher
from asched.framework.devices import SharedDevices
from asched.journal.memory import MemoryStore
from asched.plugins.dynamic_resources.plugin import DynamicResources
from tests.fault_simulation import configurations
from tests.fault_simulation.campaign import described, jobs, run_job
from tests.fault_simulation.mixes import CLASSES
from tests.fault_simulation.simulation import simulate

FIRST_SEED, SEEDS_PER_CLASS = 18, 3
"""A range with a restart in each class but one; `make simulate` runs any number."""


@pytest.mark.parametrize("name", CLASSES)
def test_seeds(name: str) -> None:
    bound = lives = differences = 0
    for job in jobs(FIRST_SEED, SEEDS_PER_CLASS, name):
        outcome = run_job(job)
        assert not outcome.breach, described(outcome)
        bound, lives = bound + outcome.bound, lives + outcome.lives
        differences += outcome.differences
    assert bound > 4 * SEEDS_PER_CLASS, "too few bindings for a meaningful test"
    assert (lives == SEEDS_PER_CLASS) is (name == "calm")
    assert bool(differences) is (name == "lost")


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        # The backoff of a gang's last member exceeded the Permit timeout of the others.
        (6006612, "gangs"),
        # A turn ended when the last member of a gang was placed.
        (8200336, "gangs"),
        # The beneficiary of evictions was guessed from a checkpoint.
        (20004072, "gangs"),
        # A held pod rejected by preemption missed a new node.
        (50002584, "plugins"),
        # A process ended between the last member of a gang and its PermitAllowed.
        (60001259, "storm"),
        # A stop waited minutes for a last checkpoint.
        (200011214, "storm"),
        # A failed binding gave up devices although the API server had stored their claim.
        (40, "allocators"),
        # A pod waited forever after its left-over claim for extended resources was deleted.
        (23, "claims"),
        # Devices were free once another client bound the pod, although its claim had been written.
        (60010, "allocators"),
        # The binding of a pod that another client bound had no end.
        (61224, "claims"),
        # A member that was being deleted counted for the minimum of its group.
        (40215, "groups"),
        # A group that was tried without nodes waited for an event that never came.
        (63355, "groups"),
        # A new leader gave away a device although its restarted watch of claims had failed.
        (4001731, "allocators"),
        # Pods placed after a rejected tree made it feasible: its first child no longer fitted.
        (410058, "trees"),
    ],
)
def test_seeds_with_former_breaches(seed: int, name: str) -> None:
    outcome = simulate(seed, name)
    assert not outcome.breach, outcome


@pytest.mark.parametrize("name", ["storm", "leader", "sessions"])
def test_seed_is_reproducible(name: str) -> None:
    lines: list[str] = []
    first, again = simulate(77, name, lines.append), simulate(77, name)
    assert first == again
    assert len(lines) > 100
    assert simulate(78, name).digest != first.digest


def test_seed_is_reproducible_in_another_process() -> None:
    """With another string hash seed and other memory addresses."""
    program = (
        "from tests.fault_simulation.simulation import simulate\n"
        "for seed in range(3): print(simulate(seed, 'storm'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    here = "".join(f"{simulate(seed, 'storm')}\n" for seed in range(3))
    assert done.stdout == here


def first_breach(name: str, seeds: int, first: int = 0) -> str:
    for job in jobs(first, seeds, name):
        outcome = run_job(job)
        if outcome.breach:
            return outcome.breach
    return ""


def test_daemon_without_resume_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EffectDispatcher, "resume", lambda self: None)
    assert "could have been scheduled" in first_breach("crash", 40, first=19)


def test_lost_event_that_is_not_repaired_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_nothing(self: ClusterComparer) -> None:
        pass

    monkeypatch.setattr(ClusterComparer, "compare", find_nothing)
    assert "forgotten: " in first_breach("lost", 40, first=1)


def test_difference_at_first_sight_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparer that does not wait for the watch reports differences that are none."""

    async def passed(*of_watch: object) -> bool:
        return True

    monkeypatch.setattr(ClusterComparer, "_passed", passed)
    monkeypatch.setattr(configurations, "_COMPARING", 1.0)
    assert "the comparer is wrong" in first_breach("watch", 40)


def test_device_that_is_allocated_twice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pods got is not counted until the watch shows it."""
    monkeypatch.setattr(SharedDevices, "reserve", lambda self, uid, allocations: None)
    assert "is allocated twice" in first_breach("claims", 40)


def test_allocation_that_stays_pending_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DynamicResources, "give_up", lambda *args: None)
    assert "allocations are still pending" in first_breach("claims", 40)


def test_fenced_writer_that_continues_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MemoryStore.append

    async def unfenced(self: MemoryStore, *args: object, **options: object) -> object:
        self._epoch = self._journal.epoch
        return await append(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStore, "append", unfenced)
    assert "ended with ConflictError" in first_breach("leader", 40, first=5)
