"""Many seeds, in one process or several: ``python -m tests.fault_simulation``."""

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


class Tally:
    """What a class of seeds came to."""

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
    """Seeds in order, each of its class or all of the one that is asked for."""
    return [Job(seed, name or class_of(seed)) for seed in range(first, first + count)]


@contextmanager
def outcomes(of: Sequence[Job], processes: int) -> Iterator[Iterable[Outcome]]:
    """In the order of the jobs."""
    if processes == 1:
        yield map(run_job, of)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool.imap(run_job, of, chunksize=4)


def table(tallies: dict[str, Tally]) -> str:
    """One line a class."""
    form = "{:<10}{:>7}{:>11}{:>9}{:>11}{:>11}{:>9}{:>10}"
    heads = "class", "seeds", "virtual h", "daemons", "records", "decisions", "bound", "breaches"
    lines = [form.format(*heads)]
    for name, tally in tallies.items():
        hours = f"{tally.churn_s / 3600:.1f}"
        lines.append(
            form.format(
                name, tally.seeds, hours, tally.lives, tally.records, tally.decisions, tally.bound,
                tally.breaches,
            )
        )  # fmt: skip
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
    """What has been found up to now, and says so."""

    def __init__(self, wanted: int) -> None:
        self.breaches = 0
        self._wanted = wanted
        self._done = 0
        self._tallies = {name: Tally() for name in CLASSES}
        self._began_s = self._said_s = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """One more. A breach is told of at once, all else now and then."""
        self._done += 1
        self._tallies[outcome.name].add(outcome)
        if outcome.breach:
            self.breaches += 1
            print(described(outcome), flush=True)
        now_s = time.monotonic()
        if now_s - self._said_s >= _REPORT_EVERY_S:
            self._said_s = now_s
            print(f"{self._done} of {self._wanted} seeds, {self.breaches} breaches,"
                  f" {now_s - self._began_s:.0f} s", file=sys.stderr, flush=True)  # fmt: skip

    def summary(self) -> str:
        """A table of the classes, and a line."""
        classes = {name: tally for name, tally in self._tallies.items() if tally.seeds}
        took_s = time.monotonic() - self._began_s
        return f"{table(classes)}\n{self._done} seeds in {took_s:.0f} s, {self.breaches} breaches"


def described(outcome: Outcome) -> str:
    if not outcome.breach:
        return f"seed {outcome.seed} ({outcome.name}): well, {outcome.digest}\n{outcome}"
    again = f"python -m tests.fault_simulation --seed {outcome.seed} --class {outcome.name} --trace"
    return (
        f"seed {outcome.seed} ({outcome.name}), step {outcome.step}, {outcome.virtual_s:.3f} s:"
        f" {outcome.breach}\n  {again}"
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, taken apart."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault_simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--class", dest="name", choices=CLASSES, help="all of them of this class")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--most-breaches", type=int, default=1, help="go on until there are so many"
    )
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--trace", action="store_true", help="show all that happens in it")
    return parser.parse_args(arguments)
