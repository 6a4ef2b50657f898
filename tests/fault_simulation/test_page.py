"""The documentation page lists all classes, and its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fault_simulation.campaign import described, parsed
from tests.fault_simulation.mixes import CLASSES
from tests.fault_simulation.simulation import Outcome

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "simulation-testing.md").read_text()


def test_page_lists_every_class() -> None:
    classes = PAGE.partition("## Fault classes")[2].partition("## Invariants")[0]
    assert re.findall(r"^\| (\w+) \|", classes, re.MULTILINE)[1:] == [*CLASSES]


def test_page_shows_a_report() -> None:
    breach = "node n1 is overcommitted by app4-0: 2250m of 2000m CPU"
    report = described(Outcome(143, "api", breach, 430, 0.0, 53.989, 0, 0, 0, 1, 0, ""))
    assert "".join(f"    {line}\n" for line in report.splitlines()) in PAGE


def test_commands_of_page_parse() -> None:
    commands = re.findall(r"python -m tests\.fault_simulation (.*)", PAGE)
    assert len(commands) >= 3
    for command in commands:
        assert parsed(command.partition("#")[0].split()).seeds


_OWN_MAKE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
"""Without the options that ``make test`` passes on."""


def test_make_simulate_runs_seeds() -> None:
    for line in re.findall(r"^make simulate.*", PAGE, re.MULTILINE):
        options = line.partition("#")[0].split()[2:]
        dry = subprocess.run(
            ["make", "--no-print-directory", "--dry-run", "--always-make", "simulate", *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env=_OWN_MAKE,
        )
        command = dry.stdout.strip().splitlines()[-1]
        assert parsed(command.partition("tests.fault_simulation")[2].split()).seeds >= 1000


def test_command_runs_one_seed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault_simulation", "--seed", "12", "--trace"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "seed 12 (" in done.stdout
    assert "asched-1: starts" in done.stdout
