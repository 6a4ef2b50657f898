"""Runs many seeds in one or several processes: ``python -m tests.fault_simulation``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.fault_simulation.mixes import CLASSES, class_of
from tests.fault_simulation.simulation import Outcome, simulate

_REPORT_EVERY_S = 5.0


class ClassTotals:
    """Totals of one class of seeds."""

    def __init__(self) -> None:
        self.seeds = 0
        self.breaches = 0
        self.churn_s = 0.0
        self.records = 0
        self.decisions = 0
        self.bound = 0
        self.lives = 0

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.breaches += bool(outcome.breach)
        self.churn_s += outcome.churn_s
        self.records += outcome.records
        self.decisions += outcome.decisions
        self.bound += outcome.bound
        self.lives += outcome.lives


class Job(NamedTuple):
    seed: int
    name: str


def run_job(job: Job) -> Outcome:
    return simulate(job.seed, job.name)


def jobs(first: int, count: int, name: str = "") -> list[Job]:
    """Seeds in order, each of its own class or all of ``name``."""
    return [Job(seed, name or class_of(seed)) for seed in range(first, first + count)]


@contextmanager
def outcomes(of: Sequence[Job], processes: int) -> Iterator[Iterable[Outcome]]:
    """Outcomes in the order of the jobs."""
    if processes == 1:
        yield map(run_job, of)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool.imap(run_job, of, chunksize=4)


def table(totals: dict[str, ClassTotals]) -> str:
    """One line per class."""
    form = "{:<10}{:>7}{:>11}{:>9}{:>11}{:>11}{:>9}{:>10}"
    heads = "class", "seeds", "virtual h", "daemons", "records", "decisions", "bound", "breaches"
    lines = [form.format(*heads)]
    for name, total in totals.items():
        hours = f"{total.churn_s / 3600:.1f}"
        lines.append(
            form.format(
                name,
                total.seeds,
                hours,
                total.lives,
                total.records,
                total.decisions,
                total.bound,
                total.breaches,
            )
        )
    return "\n".join(lines)


def main() -> None:
    options = parsed(sys.argv[1:])
    if options.seed is not None:
        name = options.name or class_of(options.seed)
        outcome = simulate(options.seed, name, print if options.trace else None)
        print(described(outcome))
        sys.exit(bool(outcome.breach))
    sys.exit(_campaign(options))


def _campaign(options: argparse.Namespace) -> int:
    progress = Progress(options.seeds)
    with (
        suppress(KeyboardInterrupt),
        outcomes(jobs(options.first, options.seeds, options.name), options.processes) as found,
    ):
        for outcome in found:
            progress.add(outcome)
            if progress.breaches >= options.most_breaches:
                break
    print(progress.summary())
    return int(bool(progress.breaches))


class Progress:
    """Collects outcomes and prints progress."""

    def __init__(self, wanted: int) -> None:
        self.breaches = 0
        self._wanted = wanted
        self._done = 0
        self._totals = {name: ClassTotals() for name in CLASSES}
        self._began_s = self._printed_s = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """Add an outcome. Breaches are printed at once, progress periodically."""
        self._done += 1
        self._totals[outcome.name].add(outcome)
        if outcome.breach:
            self.breaches += 1
            print(described(outcome), flush=True)
        now_s = time.monotonic()
        if now_s - self._printed_s >= _REPORT_EVERY_S:
            self._printed_s = now_s
            print(
                f"{self._done} of {self._wanted} seeds, {self.breaches} breaches,"
                f" {now_s - self._began_s:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    def summary(self) -> str:
        """A table of the classes and a summary line."""
        classes = {name: total for name, total in self._totals.items() if total.seeds}
        took_s = time.monotonic() - self._began_s
        return f"{table(classes)}\n{self._done} seeds in {took_s:.0f} s, {self.breaches} breaches"


def described(outcome: Outcome) -> str:
    if not outcome.breach:
        return f"seed {outcome.seed} ({outcome.name}): ok, {outcome.digest}\n{outcome}"
    again = f"python -m tests.fault_simulation --seed {outcome.seed} --class {outcome.name} --trace"
    return (
        f"seed {outcome.seed} ({outcome.name}), step {outcome.step}, {outcome.virtual_s:.3f} s:"
        f" {outcome.breach}\n  {again}"
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault_simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--class", dest="name", choices=CLASSES, help="run all seeds in this class")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--most-breaches", type=int, default=1, help="stop after this many breaches"
    )
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--trace", action="store_true", help="print its trace")
    return parser.parse_args(arguments)
