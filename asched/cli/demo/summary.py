"""What the demo says at its end."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from asched.cli.demo.standing import Use
from asched.cli.demo.tally import Tally
from asched.cli.demo.view import describe
from asched.cli.demo.workload import Workload
from asched.cli.output import print_table

_UNBOUND_SHOWN: Final = 10


@dataclass(frozen=True)
class Outcome:
    """How the run ended."""

    workload: Workload
    tally: Tally
    use: tuple[Use, ...]
    pending: dict[str, str]
    """Keys of the pods that are pending, and what the scheduler says of each."""
    journal: Path

    @property
    def succeeded(self) -> bool:
        """Every pod that can run was bound, and every one that cannot was told why."""
        return not self.tally.unbound and self.workload.hopeless.keys() <= self.pending.keys()


def print_summary(outcome: Outcome) -> None:
    """The figures, what is pending and why, and where to look further."""
    tally, workload = outcome.tally, outcome.workload
    throughput = (
        f"{tally.pods_per_s:.0f} pods/s over {tally.elapsed_s:.1f} s,"
        f" {tally.best_second} in the best second"
    )
    latency = f"p50 {tally.latency_s(50) * 1000:.0f} ms, p99 {tally.latency_s(99) * 1000:.0f} ms"
    rows = [
        ("pods that can run", f"{len(workload.feasible)}"),
        ("  bound", f"{len(workload.feasible) - len(tally.unbound)}"),
        ("pods that cannot run", f"{len(workload.hopeless)}"),
        ("throughput", throughput),
        ("seen to bound", latency),
        ("tried more than once", f"{len(tally.attempts)} pods"),
        ("failed attempts", f"{tally.failures}"),
        *(
            (f"requested {use.resource}", f"{use.part:.0%}  ({describe(use)})")
            for use in outcome.use
        ),
        ("journal", f"{tally.seq} records, {_size_bytes(outcome.journal) / 1e6:.1f} MB"),
    ]
    print_table(("THE RUN", ""), rows)
    _print_pending(outcome)


def _size_bytes(journal: Path) -> int:
    files = (journal, journal.with_name(f"{journal.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _print_pending(outcome: Outcome) -> None:
    counts = Counter(outcome.workload.hopeless.values())
    # Nodes join meanwhile, so the counts of nodes differ between like pods: the last one's word.
    said = {
        why: outcome.pending.get(key, "(was not told)")
        for key, why in sorted(outcome.workload.hopeless.items())
    }
    print_table(
        ("CANNOT RUN", "BECAUSE THE POD", "THE SCHEDULER SAYS"),
        [(str(count), why, said[why]) for why, count in counts.items()],
    )
    if outcome.tally.unbound:
        unbound = sorted(outcome.tally.unbound)
        print_table(
            ("SHOULD HAVE RUN", "THE SCHEDULER SAYS"),
            [(key, outcome.pending.get(key, "")) for key in unbound[:_UNBOUND_SHOWN]],
            title=f"{len(unbound)} pods that can run are not bound",
        )


def next_commands(outcome: Outcome, kubeconfig: Path | None) -> Sequence[str]:
    """What to type to look further, with names from the run. ``kubeconfig`` of a cluster that is
    still there."""
    journal = f"--journal {shlex.quote(str(outcome.journal))}"
    asched = "asched" if shutil.which("asched") else shlex.quote(sys.argv[0])
    lines = []
    retried = max(outcome.tally.attempts, key=lambda key: outcome.tally.attempts[key], default=None)
    waited = next((k for k in sorted(outcome.tally.attempts) if k in outcome.workload.feasible), "")
    if waited or retried:
        lines.append(f"{asched} history {waited or retried} {journal}")
    hopeless = next((k for k in sorted(outcome.workload.hopeless) if "/shy-" in k), None)
    if hopeless:
        lines.append(f"{asched} explain {hopeless} {journal}")
    bound = sorted(outcome.workload.feasible - outcome.tally.unbound)
    if bound:
        lines.append(f"{asched} explain {bound[len(bound) // 2]} {journal}")
    if kubeconfig is not None:
        kubectl = f"kubectl --kubeconfig {shlex.quote(str(kubeconfig))}"
        lines += [f"{kubectl} get pods -A -o wide", f"{kubectl} get nodes"]
    return lines
