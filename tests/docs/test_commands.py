"""Commands and programs on pages and in README: each command parses, and some are run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml
from typer.core import TyperGroup

from asched.cli.main import app
from asched.config.file import load
from asched.config.registry import PluginRegistry
from tests.apiserver.kubectl import needs_kubectl
from tests.docs.command_lines import parsed
from tests.docs.walkthrough import blocks, outputs_of
from tests.ui.serving import invoke

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text()
SERVER: Final = (ROOT / "docs" / "reference" / "embedded-api-server.md").read_text()
_FENCED: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
_INDENTED: Final = re.compile(r"(?:^    .*\n)+", re.M)
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_ROUTES: Final = re.compile(r"\s+(?:#|\||>|&$).*")
"""A comment, a pipe, a redirection, a background command."""


def command_lines() -> Iterator[tuple[str, str]]:
    """The ``asched`` command lines in blocks of pages, synopses included, with their page."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text()
        shell = [each for kind, each in _FENCED.findall(text) if kind in ("", "sh", "text")]
        found = [*shell, *_INDENTED.findall(_FENCED.sub("", text))]
        # A line with more indentation continues the one before.
        lines = [re.sub(r"\n +(?=[\[-])", " ", re.sub(r"^    ", "", each, flags=re.M))
                 for each in found]  # fmt: skip
        for line in "\n".join(lines).splitlines():
            if command := re.match(r"(?:\$ )?(asched [a-z].*)", line):
                yield str(page.relative_to(ROOT)), command[1]


def options_of(line: str) -> set[str]:
    """All options of the commands that a line names."""
    command: Any = typer.main.get_command(app)
    for word in line.split()[1:]:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            break
        command = command.commands[word]
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize(("page", "line"), sorted({*command_lines()}))
def test_command_parses(page: str, line: str) -> None:
    command = _ROUTES.sub("", line).strip()
    if re.search(r"[\[|]|\.\.\.| \\$", line):
        assert {*_OPTION.findall(line)} <= {*options_of(line), "--help"}
    else:
        parsed(command)


def test_readme_has_a_valid_configuration(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.S)
    file = tmp_path / "scheduler.yaml"
    file.write_text(block)
    found = load(file, PluginRegistry.discover())
    assert [profile.scheduler_name for profile in found.profiles] == ["asched"]
    assert found.settings.journal.url == yaml.safe_load(block.split("---")[1])["journal"]["url"]


@needs_kubectl
@pytest.mark.parametrize("page", [README, SERVER], ids=["readme", "reference"])
async def test_commands_of_the_embedded_server_run(page: str) -> None:
    found = _INDENTED.findall(_FENCED.sub("", page))
    (first, *_) = (number for number, each in enumerate(found) if "asched apiserver" in each)
    lines = re.sub(r"^    |/tmp/|#.*", "", "".join(found[first : first + 2]), flags=re.M)
    commands = [line.strip() for line in lines.splitlines() if "apiserver" in line
                or line.startswith(("until", "export", "asched run", "kubectl"))]  # fmt: skip
    text = "\n".join(f"{line} &" if "apiserver" in line and "&" not in line else line
                     for line in commands)  # fmt: skip
    name = re.findall(r"deployment[ /]([a-z]+)", text)[0]
    ready = f"kubectl --kubeconfig demo.kubeconfig wait --for=condition=Available deployment/{name}"
    (shown,) = await outputs_of(f"```sh\n{text}\n{ready}\n```\n```text\n```\n")
    assert "condition met" in shown


def test_converted_trace_is_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "simulate.md").read_text()
    (program,) = (each.text for each in blocks(text) if each.title == "convert.py")
    (tmp_path / "jobs.csv").write_text(
        "job,submitted,started,ended,gpus\n"
        "b,2026-01-31T12:01:00Z,2026-01-31T12:05:00Z,2026-01-31T12:30:00Z,2\n"
        "a,2026-01-31T12:00:00Z,2026-01-31T12:00:10Z,2026-01-31T12:10:10Z,4\n"
    )
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,4,T4\n")
    exec(compile(program, "convert.py", "exec"), {})
    tables = ("--openb-nodes", "nodes.csv", "--openb-pods", "pods.csv")
    code, out, err = invoke("simulate", *tables, "-o", "json")
    assert (code, err) == (0, "")
    pods = {pod["pod"]: pod for pod in json.loads(out)["pods"]}
    bound = {name: (pod["boundSeconds"], pod["endedSeconds"]) for name, pod in pods.items()}
    assert bound == {"openb/a": (0, 600), "openb/b": (600, 2100)}
