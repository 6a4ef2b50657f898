"""The daemon through drawn faults: some hundreds of seeds, and that a seed is one and the same run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from asched.daemon.effects.dispatcher import Effects
from asched.journal.memory import MemoryStore
from tests.fault_simulation.campaign import described, jobs, run_job
from tests.fault_simulation.mixes import CLASSES
from tests.fault_simulation.simulation import simulate

SEEDS_PER_CLASS = 15


@pytest.mark.parametrize("name", CLASSES)
def test_seeds(name: str) -> None:
    bound = lives = 0
    for job in jobs(0, SEEDS_PER_CLASS, name):
        outcome = run_job(job)
        assert not outcome.breach, described(outcome)
        bound, lives = bound + outcome.bound, lives + outcome.lives
    assert bound > 5 * SEEDS_PER_CLASS, "runs in which nothing happens show nothing"
    assert (lives == SEEDS_PER_CLASS) is (name == "calm")


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        # A gang whose last member's backoff was longer than Permit held the others.
        (6006612, "gangs"),
        # A turn's time was over when the last member of a gang had its place.
        (8200336, "gangs"),
        # Who has use for room made by evictions was guessed from a checkpoint.
        (20004072, "gangs"),
        # A held pod that preemption turned away heard nothing of a new node.
        (50002584, "plugins"),
        # A process ended between the last member of a gang and the word that lets it go.
        (60001259, "storm"),
        # A stop waited for a last checkpoint that the journal took minutes to store.
        (200011214, "storm"),
    ],
)
def test_seeds_that_found_something(seed: int, name: str) -> None:
    outcome = simulate(seed, name)
    assert not outcome.breach, outcome


@pytest.mark.parametrize("name", ["storm", "leader", "sessions"])
def test_a_seed_is_the_same_run_again(name: str) -> None:
    lines: list[str] = []
    first, again = simulate(77, name, lines.append), simulate(77, name)
    assert first == again
    assert len(lines) > 100
    assert simulate(78, name).digest != first.digest


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Where strings hash otherwise, and objects lie elsewhere in memory."""
    program = (
        "from tests.fault_simulation.simulation import simulate\n"
        "for seed in range(3): print(simulate(seed, 'storm'))"
    )
    said = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        said.add(done.stdout)
    here = "".join(f"{simulate(seed, 'storm')}\n" for seed in range(3))
    assert said == {here}


def first_breach(name: str, seeds: int) -> str:
    for job in jobs(0, seeds, name):
        outcome = run_job(job)
        if outcome.breach:
            return outcome.breach
    return ""


def test_a_daemon_that_forgets_what_it_decided_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Effects, "resume", lambda self: None)
    assert "could have been scheduled" in first_breach("crash", 40)


def test_a_writer_that_was_deposed_and_goes_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MemoryStore.append

    async def unfenced(self: MemoryStore, *args: object, **options: object) -> object:
        self._epoch = self._journal.epoch
        return await append(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryStore, "append", unfenced)
    assert "died of ConflictError" in first_breach("leader", 40)
