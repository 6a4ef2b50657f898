"""``asched plugins new``: every step of the template's README, executed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from asched.cli.plugin_template import Names, write_distribution
from asched.config.registry import PluginRegistry
from tests.docs.command_lines import parsed

ROOT = Path(__file__).parents[2]
STEP_TIMEOUT_S = 100


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with asched and the test dependencies."""
    home = tmp_path_factory.mktemp("author") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    # Nested .pth files are not followed, so editable installations are listed here.
    lines = [line for file in here.glob("*.pth") for line in file.read_text().splitlines()]
    in_place = [line for line in lines if Path(line).is_dir()]
    (packages / "installed.pth").write_text("\n".join([str(here), *in_place, str(ROOT)]) + "\n")
    for program in ("asched", "pytest"):
        script = home / "bin" / program
        module = "asched" if program == "asched" else "pytest"
        script.write_text(
            f'#!/bin/sh\nexec {shlex.quote(str(home / "bin" / "python"))} -m {module} "$@"\n'
        )
        script.chmod(0o755)
    return home


def step(environment: Path, folder: Path, *words: str) -> str:
    path = f"{environment / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
        env={"PATH": path, "HOME": str(folder), "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
def test_new_plugin_runs_in_demo(environment: Path, tmp_path: Path) -> None:
    output = step(environment, tmp_path, "asched", "plugins", "new", "rack-filler")
    assert "cd rack-filler" in output
    folder = tmp_path / "rack-filler"
    # `pip install -e '.[dev]'` without downloads: the dependencies are installed.
    step(
        environment, folder, sys.executable, "-m", "pip", "--python",
        str(environment / "bin" / "python"), "install", "--quiet", "--no-index", "--no-deps",
        "--no-build-isolation", "-e", ".",
    )  # fmt: skip
    assert "6 passed" in step(environment, folder, "pytest", "-p", "no:cacheprovider")
    assert re.search(
        r"RackFiller\track-filler\t0\.1\.0\tfilter, score",
        step(environment, folder, "asched", "plugins", "list"),
    )
    checked = step(environment, folder, "asched", "plugins", "check", "rack-filler").splitlines()
    assert {line.split()[0] for line in checked} == {"passed"}
    assert "passed  RackFiller: forms of filter" in checked
    shown = step(
        environment, folder, "asched", "demo", "--config", "asched.yaml", "--nodes", "20", "--pods",
        "60", "--over", "0.5", "--journal", "demo.db",
    )  # fmt: skip
    next_commands = [line.strip() for line in shown.splitlines() if " explain " in line]
    explained = step(environment, folder, *shlex.split(next_commands[-1]))
    assert re.search(r"RackFiller", explained)
    assert "recomputed from the journal: identical" in explained


@pytest.mark.parametrize("name", ["a1", "abcdefghij-abcdefghi-abcdefghi"])
def test_generated_code_passes_ruff_for_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    write_distribution(Names.of(name, PluginRegistry().including()), folder)
    for words in (["check", "."], ["format", "--check", "."]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache"],
            cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_readme_commands_exist() -> None:
    folder = ROOT / "plugins" / "asched-plugin-template"
    steps = [
        line.strip()
        for line in (folder / "README.md").read_text().splitlines()
        if line.startswith("    ")
    ]
    ours = [line for line in steps if line.startswith("asched ")]
    assert len(ours) == 4
    for line in ours:
        parsed(line)
    assert {*steps} - {*ours} == {"pip install -e '.[dev]'", "pytest"}
    ci = (folder / ".github" / "workflows" / "ci.yaml").read_text()
    parsed(re.findall(r"run: (asched .*)", ci)[0])
    assert os.access(folder / "asched.yaml", os.R_OK)
