"""Faults against real processes, drawn from a seed: ``make torture``.

    python -m tests.torture --minutes 5 --seed 7

Two replicas of ``asched run`` schedule an embedded cluster, first with a journal each in SQLite and
then with a shared one in PostgreSQL. Ends with 1 if an invariant was violated.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

import anyio

from tests.torture.campaign import Options, run
from tests.torture.faults import DISK_FULL, FAULTS

_KINDS = ("own", "shared")


async def run_all(arguments: argparse.Namespace, folder: Path) -> int:
    """The number of breaches."""
    breaches = 0
    for kind in arguments.journals:
        options = Options(
            journals=kind,
            seed=arguments.seed,
            run_s=arguments.minutes * 60 / len(arguments.journals),
            longest_fault_s=arguments.longest_fault,
            only=arguments.fault or (),
        )
        summary = await run(options, folder / kind)
        summary.show()
        breaches += len(summary.breaches)
    return breaches


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--journals", nargs="+", choices=_KINDS, default=list(_KINDS))
    names = [fault.name for fault in (*FAULTS, DISK_FULL)]
    parser.add_argument("--fault", action="append", choices=names, help="only this one; repeatable")
    parser.add_argument("--longest-fault", type=float, default=15.0, help="seconds")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="asched-torture-"))
    # The account of PostgreSQL reads its data in there.
    folder.chmod(0o755)
    print(f"seed {arguments.seed}, {arguments.minutes:g} min, files in {folder}", flush=True)
    breaches = anyio.run(run_all, arguments, folder)
    if breaches:
        print(f"{breaches} breaches")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
