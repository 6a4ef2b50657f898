"""docs/reference/plugins and docs/how-to/plugins: generated pages are up to date, every public
name is documented, and every example runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import asched.framework
import asched.model
import asched.testing
from asched.cli.main import app
from asched.framework import ExtensionPoint, Plugin
from asched.testing import pod, run_filter, schedule
from asched.testing.checks import CheckOutcome, check_plugin
from tests.docs.command_lines import parsed
from tests.docs.extension_points import CONTRACTS
from tests.docs.plugin_pages import FOLDER, GUIDE, documentation, pages

ROOT = FOLDER.parents[2]
PAGES = pages()
FACES = (asched.framework, asched.model, asched.testing)


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], "run python -m tests.docs.plugin_pages"


def test_every_extension_point_has_its_contract_and_its_page() -> None:
    assert CONTRACTS.keys() == {*ExtensionPoint}
    index = (GUIDE / "index.md").read_text()
    for point in ExtensionPoint:
        assert f"| `{point.field}` |" in index
    for contract in CONTRACTS.values():
        assert all(contract[:5])


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_public_name_is_documented(face: ModuleType) -> None:
    assert [name for name in face.__all__ if not documentation(face, name)] == []
    assert [
        name for name in vars(face) if _is_public(face, name) and name not in face.__all__
    ] == []


def _is_public(face: ModuleType, name: str) -> bool:
    """Whether it is a class or a function that plugins would take for part of the face."""
    value = vars(face)[name]
    own = getattr(value, "__module__", "").startswith(face.__name__)
    return own and not name.startswith("_")


def test_every_method_of_an_extension_point_says_what_it_is_for() -> None:
    bases = {base for point in ExtensionPoint for base in point.bases}
    bases |= {other for contract in CONTRACTS.values() for other in contract.companions}
    bare = [
        f"{base.__name__}.{name}"
        for base in bases
        for name, method in vars(base).items()
        if inspect.isfunction(method) and not name.startswith("_") and not method.__doc__
    ]
    assert not bare


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (GUIDE / page).read_text(), re.S)


def test_guide_s_plugin_works_and_keeps_the_contract() -> None:
    (source,) = blocks("index.md", "python")
    found: dict[str, Any] = {"__name__": "guide"}
    exec(compile(source, "index.md", "exec"), found)
    plugin: type[Plugin] = found["OneTeamPerNode"]
    cluster = [*asched.testing.nodes(2), pod("there", labels={"team": "red"}, node="node-0")]
    said = run_filter(plugin, pod("mine", labels={"team": "blue"}), cluster)
    assert said["node-0"].message == "node(s) had pods of another team"
    assert said["node-1"].is_success
    outcomes = {finding.check: finding.outcome for finding in check_plugin(plugin)}
    assert outcomes.pop("events") is CheckOutcome.NOTE
    assert {*outcomes.values()} == {CheckOutcome.PASSED}


def test_readme_shows_the_same_plugin() -> None:
    assert blocks("index.md", "python")[0] in (ROOT / "README.md").read_text()


def test_examples_of_the_kit_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (asched simulate .*)$", (GUIDE / "testing.md").read_text(), re.M)
    (line,) = lines
    words = line.replace("docs/", f"{ROOT}/docs/").split()
    assert CliRunner().invoke(app, words[1:], prog_name="asched").exit_code == 0
    names: dict[str, Any] = {"__name__": "page"}
    for source in blocks("testing.md", "python"):
        exec(compile(source, "testing.md", "exec"), names)
    names["test_in_a_profile"](schedule)


@pytest.mark.parametrize("page", ["index.md", "testing.md"])
def test_command_lines_are_read_by_the_real_parser(page: str) -> None:
    lines = re.findall(r"^    (asched .*)$", (GUIDE / page).read_text(), re.M)
    assert lines
    for line in lines:
        parsed(line)


@pytest.mark.parametrize(
    "page", [*sorted(FOLDER.glob("*.md")), *sorted(GUIDE.glob("*.md"))], ids=lambda page: page.name
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / name).exists(), f"{page.name} points to {name}"


READ_BY_PLUGINS = (
    asched.framework.Cluster,
    asched.framework.CycleState,
    asched.framework.Handle,
    asched.framework.NodeInfo,
    asched.framework.Nodes,
    asched.framework.PodInfo,
    asched.framework.StateKey,
    asched.framework.Status,
)


@pytest.mark.parametrize("kind", READ_BY_PLUGINS, ids=lambda kind: kind.__name__)
def test_every_member_of_what_plugins_read_is_documented(kind: type) -> None:
    """A member without a docstring would be missing on the page."""
    bare = [
        name
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and isinstance(member, FunctionType | classmethod | property)
        and not inspect.getdoc(member)
    ]
    assert not bare
    page = (FOLDER / "types.md").read_text()
    assert f"\n::: asched.framework.{kind.__name__}\n" in page
