"""docs/how-to/dynamic-resources.md: every command is run, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import pytest
from typer.testing import CliRunner

from asched.cli.main import app
from asched.config.feature_gates import GATES
from asched.dra.allocator import SearchLimits
from asched.dra.outcomes import TOO_EXPENSIVE
from asched.plugins.dynamic_resources.plugin import DynamicResources, DynamicResourcesArgs
from tests.apiserver.kubectl import needs_kubectl
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.test_run_command import until_logged
from tests.daemon.world import OWN
from tests.docs.command_lines import parsed
from tests.helm.chart import ROOT

PAGE: Final = (ROOT / "docs" / "how-to" / "dynamic-resources.md").read_text()
BLOCKS: Final[list[tuple[str, str]]] = re.findall(r"```(sh|text|yaml)\n(.*?)```", PAGE, re.S)
*WALKTHROUGH, (_, _), (_, ERROR) = BLOCKS
COMMANDS: Final = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
(MANIFEST,) = (text for kind, text in BLOCKS if kind == "yaml")


def plain(text: str) -> str:
    """The words, without the times and numbers of records; generated names are replaced."""
    text = re.sub(r"\d{4}-\d\d-\d\d [\d:.]+\s+\+[\d.]+ s\s+\d+\s", "", text)
    text = re.sub(r"(train-\d-gpu)-[a-z0-9]{5}", r"\1-x", text)
    return " ".join(text.split())


@pytest.mark.parametrize(
    "line", [line.removesuffix(" &") for line in COMMANDS if line.startswith("asched ")]
)
def test_asched_commands_parse(line: str) -> None:
    assert parsed(line) is not None


class Walkthrough:
    """Runs the commands of the page in one folder."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack

    async def do(self, line: str) -> str:
        """The output of one command. The test fails if the command fails."""
        if line.startswith("asched "):
            names = ("dra.kubeconfig", "dra.db")
            words = shlex.split(line.removesuffix(" &"))[1:]
            words = [str(self._folder / word) if word in names else word for word in words]
            return await (self._start(words) if line.endswith("&") else self._run(words))
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}
        command = ["sh", "-c", line]
        done = await anyio.run_process(command, cwd=self._folder, env=environment)
        return done.stdout.decode()

    async def _run(self, words: list[str]) -> str:
        invoke = partial(CliRunner().invoke, app, words, env={"COLUMNS": "200"})
        done = await anyio.to_thread.run_sync(invoke)
        assert done.exit_code == 0, done.output
        return done.stdout

    async def _start(self, words: list[str]) -> str:
        if words[0] == "run":
            words += ["--config", str(self._folder / "health-off.yaml")]
        outputs = self._folder / words[0]
        outputs.mkdir()
        processes = await self._stack.enter_async_context(commands(outputs))
        started = await self._stack.enter_async_context(running(processes, *words))
        await until_logged(
            started, "caches synced" if words[0] == "run" else "serving a cluster of 1 nodes"
        )
        return ""


@needs_kubectl
async def test_walkthrough_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "health-off.yaml").write_text(NO_HEALTH)
    (tmp_path / "gpus.yaml").write_text(MANIFEST)
    printed = ""
    async with AsyncExitStack() as stack:
        walkthrough = Walkthrough(tmp_path, stack)
        for kind, text in WALKTHROUGH:
            if kind == "text":
                shown = [plain(line) for line in text.splitlines()]
                assert [line for line in shown if line not in plain(printed)] == [], printed
            elif kind == "sh":
                for line in text.splitlines():
                    printed = await walkthrough.do(line)


def test_gates_that_are_off_are_rejected_as_the_page_says(tmp_path: Path) -> None:
    off = [g for g in GATES if g.name.startswith("DRA") and not g.default]
    assert {g.name for g in off} == set(re.findall(r"^\| `(DRA\w+)` \|", PAGE, re.M))
    file = tmp_path / "gates.yaml"
    for gate in off:
        file.write_text(f"{OWN}featureGates: {{{gate.name}: true}}\n")
        done = CliRunner().invoke(app, ["config", "check", str(file)], prog_name="asched")
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert f"featureGates.{gate.name}: cannot be true: " in line
        if gate.name in ERROR:
            assert line == f"{tmp_path}/{ERROR.strip()}"


def test_gates_that_can_be_switched_off() -> None:
    stated = re.search(r"^(.*) are on and can be switched off", PAGE, re.M)
    assert stated is not None
    assert set(re.findall(r"`(\w+)`", stated[1])) == DynamicResources.honors_gates


def test_arguments_and_limits_are_those_of_the_code() -> None:
    arguments = DynamicResourcesArgs()
    assert f"| `filterTimeout` | `{arguments.filter_timeout}` |" in PAGE
    assert f"| `bindingTimeout` | `{arguments.binding_timeout}` |" in PAGE
    limits = SearchLimits()
    assert limits.steps_per_node == limits.steps_per_attempt
    assert f"{limits.steps_per_attempt:,} for all nodes of an attempt" in PAGE
    assert f"`{TOO_EXPENSIVE}`" in PAGE
