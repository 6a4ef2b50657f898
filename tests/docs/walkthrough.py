"""Runs the commands of a tutorial, and compares their output with what the page shows.

Blocks of a page are run in order: ``sh`` has commands, ``text`` the output of the last one, and a
block with a title is a file. Commands that end in ``&`` run until the end.

    python -m tests.docs.walkthrough docs/tutorial/embedded-cluster.md

writes the present outputs to a page.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from typer.testing import CliRunner

from asched.cli.main import app
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.test_run_command import until_logged

COLUMNS: Final = 100
_BLOCK: Final = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
_VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.]+(\+00:00| UTC)?"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UID"),
    (re.compile(r"\+\d+\.\d+ s\s+\d+"), "AFTER RECORD"),
    (re.compile(r"record \d+"), "record N"),
    (re.compile(r"records 1 to \d+"), "records 1 to N"),
    (re.compile(r"\b\d+(\.\d+)?m?s\b"), "DURATION"),
    # Within its backoff a rejected pod goes to that queue.
    (re.compile(r"from unschedulable to (active|backoff)"), "from unschedulable"),
    (re.compile(r"[-─]+"), "-"),
)
_READY: Final = {"run": "caches synced", "apiserver": "serving a cluster of"}
_TRIES: Final = 40
_PAUSE_S: Final = 0.25


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    title: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(page):
        yield Block(match[1], match[2] or "", match[3])


def essence(line: str) -> str:
    """A line without what differs between runs, and without the width of columns."""
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return " ".join(line.split())


@dataclass
class TutorialRun:
    """Runs commands in one folder."""

    folder: Path
    stack: AsyncExitStack
    environment: dict[str, str] = field(default_factory=dict)

    async def follow(self, page: str, shown: list[str]) -> list[str]:
        """The outputs where the page has ``text`` blocks. A command is repeated until its output
        has all lines of the block, because another process may not have written them yet."""
        outputs: list[str] = []
        last = ""
        for block in blocks(page):
            if block.title:
                file = self.folder / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
            elif block.kind == "sh":
                for last in block.text.splitlines():
                    printed = await self.do(last)
            elif block.kind == "text":
                wanted = shown[len(outputs)] if len(outputs) < len(shown) else ""
                for _ in range(_TRIES):
                    if not missing(wanted, printed) or not last.startswith("asched "):
                        break
                    await anyio.sleep(_PAUSE_S)
                    printed = await self.do(last)
                outputs.append(printed)
        return outputs

    async def do(self, line: str) -> str:
        """The output of one command. Raises AssertionError if it fails."""
        if line.startswith("export "):
            for setting in shlex.split(line)[1:]:
                name, _, value = setting.partition("=")
                self.environment[name] = str(self.folder / value)
            return ""
        if line.startswith("asched ") and line.endswith("&"):
            await self._start(shlex.split(line.removesuffix("&"))[1:])
            return ""
        if line.startswith("asched "):
            return await self._run(shlex.split(line)[1:])
        if line == "pip install -e .":
            self._install()
            return ""
        return await self._shell(line)

    async def _run(self, words: list[str]) -> str:
        environment = {**self.environment, "COLUMNS": str(COLUMNS)}
        invoke = partial(CliRunner().invoke, app, self._paths(words), env=environment)
        done = await anyio.to_thread.run_sync(invoke)
        assert done.exit_code == 0, done.output
        return done.stdout.replace(f"{self.folder}/", "")

    async def _start(self, words: list[str]) -> None:
        outputs = self.folder / f"output-{words[0]}"
        outputs.mkdir()
        name, words = words[0], self._paths(words)
        if name == "run" and "--config" not in words:
            # The address of /metrics may be in use on a machine that runs several tests.
            (self.folder / "health-off.yaml").write_text(NO_HEALTH)
            words += ["--config", str(self.folder / "health-off.yaml")]
        processes = await self.stack.enter_async_context(commands(outputs))
        started = await self.stack.enter_async_context(running(processes, *words))
        await until_logged(started, _READY[name])

    async def _shell(self, line: str) -> str:
        inherited = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        done = await anyio.run_process(
            ["sh", "-c", line],
            cwd=self.folder,
            env={**inherited, **self.environment},
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr.decode())
        return done.stdout.decode()

    def _install(self) -> None:
        """Makes the distribution in the folder known to this process, until the end."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        name = project["name"].replace("-", "_")
        metadata = self.folder / f"{name}-{project['version']}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        sys.path.insert(0, str(self.folder))
        self.stack.callback(sys.path.remove, str(self.folder))
        self.stack.callback(sys.modules.pop, name, None)
        importlib.invalidate_caches()

    def _paths(self, words: list[str]) -> list[str]:
        """Names of files become paths in the folder."""
        files = re.compile(r".*\.(kubeconfig|db|ya?ml|csv|html)")
        return [str(self.folder / word) if files.fullmatch(word) else word for word in words]


def missing(shown: str, printed: str) -> list[str]:
    """The lines of a page that were not printed."""
    lines = {essence(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if essence(line) not in lines]


def texts(page: str) -> list[str]:
    """What a page shows as output."""
    return [block.text for block in blocks(page) if block.kind == "text"]


async def outputs_of(page: str) -> list[str]:
    """The outputs of the commands of a page, one for each ``text`` block."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            return await TutorialRun(Path(folder), stack).follow(page, texts(page))


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with these outputs in its ``text`` blocks."""
    left = iter(outputs)

    def replaced(match: re.Match[str]) -> str:
        if match[1] != "text":
            return match[0]
        lines = [line.rstrip() for line in next(left).splitlines()]
        kept = re.sub(r"\n{2,}", "\n\n", "\n".join(lines).strip("\n"))
        return f"```text\n{kept}\n```"

    return _BLOCK.sub(replaced, page)


def main() -> None:
    for name in sys.argv[1:]:
        page = Path(name)
        without = with_outputs(page.read_text(), [""] * len(texts(page.read_text())))
        page.write_text(with_outputs(without, anyio.run(outputs_of, without)))


if __name__ == "__main__":
    main()
