"""From ``asched plugins new`` to a plugin that decides in the demo: every step of its README, for real."""

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
    """A virtual environment of the author's, in which asched and what tests need are installed."""
    home = tmp_path_factory.mktemp("author") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    # A .pth file among those that lie there is not followed: what is installed in place is named.
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
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False,
        env={"PATH": f"{environment / 'bin'}:/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
def test_from_new_to_deciding(environment: Path, tmp_path: Path) -> None:
    said = step(environment, tmp_path, "asched", "plugins", "new", "rack-filler")
    assert "cd rack-filler" in said
    folder = tmp_path / "rack-filler"
    # As `pip install -e '.[dev]'`, with nothing to be fetched: what it depends on is there.
    step(
        environment, folder, sys.executable, "-m", "pip", "--python",
        str(environment / "bin" / "python"), "install", "--quiet", "--no-index", "--no-deps",
        "--no-build-isolation", "-e", ".",
    )  # fmt: skip
    assert "6 passed" in step(environment, folder, "pytest", "-p", "no:cacheprovider")
    assert re.search(
        r"RackFiller +rack-filler +0\.1\.0 +filter, score",
        step(environment, folder, "asched", "plugins", "list"),
    )
    checked = step(environment, folder, "asched", "plugins", "check", "rack-filler").splitlines()
    assert {line.split()[0] for line in checked} == {"passed"}
    assert "passed  RackFiller: forms of filter" in checked
    shown = step(
        environment, folder, "asched", "demo", "--config", "asched.yaml", "--nodes", "20", "--pods",
        "60", "--over", "0.5", "--journal", "demo.db",
    )  # fmt: skip
    look_further = [line.strip() for line in shown.splitlines() if " explain " in line]
    told = step(environment, folder, *shlex.split(look_further[-1]))
    assert re.search(r"RackFiller", told)
    assert "decided once more from the journal: the same" in told


@pytest.mark.parametrize("name", ["a1", "abcdefghij-abcdefghi-abcdefghi"])
def test_style_holds_under_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    write_distribution(Names.of(name, PluginRegistry.of()), folder)
    for words in (["check", "."], ["format", "--check", "."]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache"],
            cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_the_readme_explains_steps_that_exist() -> None:
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
