"""``asched plugins``: what it tells of good plugins, and what it finds wrong with others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asched.batch.registry import SessionRegistry, SessionRegistryError
from asched.cli.main import app
from asched.cli.plugin_description import describe_all, describe_named
from asched.cli.plugin_template import Names, template_files, template_folder, write_distribution
from asched.config.registry import PluginRegistry
from asched.framework.session_plugins import ACTION_GROUP, PLUGIN_GROUP

HEAD = """
from typing import ClassVar
from asched.framework import *

seen = []

class Base(Plugin):
    '''Common to all here.'''
    api_version = 1
"""

WRONG = {
    "NoDoc": ("documentation: no docstring: NoDoc", "ScorePlugin", None, "def score(self, state, pod, node): return 1"),
    "Short": ("signatures: score must take state, pod, node", "ScorePlugin", "S", "def score(self, pod): return 1"),
    "Late": ("signatures: filter must not be asynchronous", "FilterPlugin", "L", "async def filter(self, state, pod, node): return SUCCESS"),
    "High": ("answers: plugin High at Score: a score of 101 or 101 is outside 0..100", "ScorePlugin", "H", "def score(self, state, pod, node): return 101"),
    "Split": (
        "forms of filter: pod default/pending-0: of node-0 filter says yes, filter_all Unschedulable (no)",
        "FilterPlugin, FilterAllPlugin", "F",
        ("def filter(self, state, pod, node): return SUCCESS\n"
        "    def filter_all(self, state, pod, nodes):\n"
        "        import numpy as np\n"
        "        return FilterResult.reject(np.ones(nodes.size, bool), Status.unschedulable('no'))"),
    ),
    "Uneven": (
        "forms of score: pod ", "ScorePlugin, ScoreAllPlugin", "U",
        ("def score(self, state, pod, node): return 1\n"
        "    def score_all(self, state, pod, nodes): return nodes.pod_count * 0"),
    ),
    "Counts": (
        "purity: decided once more it answers otherwise: ", "ScorePlugin", "C",
        "def score(self, state, pod, node):\n        seen.append(1)\n        return len(seen) * 37 % 101",
    ),
    "Far": (
        "scope: it looks further than Scope.NODE_OBJECT: ", "ScorePlugin", "F",
        ("scope = Scope.NODE_OBJECT\n"
        "    def score(self, state, pod, node): return max(0, 100 - 30 * node.pod_count)"),
    ),
    "Meddles": (
        "no mutation: it changed Node node-0, which is not its own", "ScorePlugin", "M",
        "def score(self, state, pod, node):\n        node.labels['seen'] = 'yes'\n        return 1",
    ),
    "Peeks": (
        "scope: its PreFilter or PreScore looks at nodes, ", "PreScorePlugin, ScorePlugin", "P",
        ("scope = Scope.NODE\n"
        "    def pre_score(self, state, pod, nodes): return SUCCESS if nodes.size else Status.skip()\n"
        "    def score(self, state, pod, node): return 1"),
    ),
    "Needy": (
        "arguments: Object missing required field `most` - at `$.pluginConfig", "ScorePlugin", "N", "",
    ),
}  # fmt: skip
EXPECTED_NOTES = {
    "Needy": "arguments: it needs arguments (most), so it is not run",
    "Peeks": (
        "scope: its PreFilter or PreScore looks at nodes, which a plugin of Scope.NODE should not: all"
        " that like pods share is computed anew after each change to any node"
    ),
}


def source() -> str:
    text = HEAD + "\nclass NeedyArgs(Arguments, frozen=True):\n    '''Needed.'''\n    most: int\n"
    for name, (_, bases, doc, body) in WRONG.items():
        if name == "Needy":
            body = "arguments = NeedyArgs\n    def score(self, state, pod, node): return 1"
        text += f"\nclass {name}({bases}):\n" + (f"    '''{doc}'''\n" if doc else "")
        text += f"    name = {name!r}\n    api_version = 1\n    {body}\n"
    return text


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution of plugins that each break the contract in one way, on disk as pip leaves it."""
    module, info = "asched_test_wrong", tmp_path / "Wrong_Plugins-1.2.dist-info"
    info.mkdir()
    (tmp_path / f"{module}.py").write_text(source())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Wrong_Plugins\nVersion: 1.2\n")
    points = [f"{name} = {module}:{name}" for name in (*WRONG, "Gone")]
    (info / "entry_points.txt").write_text("[asched.plugins]\n" + "\n".join(points) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(module, None)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plugins", *words], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def test_each_breach_of_the_contract_is_found(wrong: None) -> None:
    code, out, err = run("check", "wrong-plugins")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    for name, (told, *_) in WRONG.items():
        failed = [line for line in lines if line.startswith("failed") and f" {name}: " in line]
        if name in EXPECTED_NOTES:
            assert (failed, f"note    {name}: {EXPECTED_NOTES[name]}" in lines) == ([], True)
        else:
            assert failed[0].startswith(f"failed  {name}: {told}"), failed
    assert 'failed  Gone: loading: plugin "Gone" of Wrong_Plugins 1.2: importing' in out
    clean = [line for line in lines if " Far: " in line and not line.startswith("passed")]
    assert len(clean) == 1


def test_our_own_plugins_keep_the_contract() -> None:
    code, out, err = run("check", "asched", "-o", "json")
    assert (code, err) == (0, ""), out
    found: list[dict[str, str]] = json.loads(out)
    assert {each["outcome"] for each in found} == {"passed"}
    checked = {(each["plugin"], each["check"]) for each in found}
    assert checked >= {("NodeResourcesFit", "forms of filter"), ("GangScheduling", "purity")}


def test_a_distribution_without_plugins() -> None:
    code, _, err = run("check", "numpy")
    assert code == 2
    assert err.startswith(
        'asched: no installed distribution "numpy" offers plugins; those that do: '
    )
    assert "asched" in err.partition(" do: ")[2]


CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {score: {enabled: [{name: NodeResourcesFit, weight: 4}], disabled: [{name: ImageLocality}]}}
"""


def shown(*words: str) -> Any:
    code, out, err = run(*words, "-o", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_plugin_is_shown_with_all_it_declares(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    fit = shown("show", "NodeResourcesFit", "--config", str(file))
    assert (fit["pure"], fit["scope"], fit["apiVersion"]) == (True, "amounts", 1)
    assert fit["source"] == "asched.plugins.node_resources.fit:NodeResourcesFit"
    schema = fit["argumentsSchema"]["$defs"]["NodeResourcesFitArgs"]
    assert schema["properties"].keys() >= {"scoringStrategy", "ignoredResources"}
    assert {"profile": "default-scheduler", "extensionPoint": "score", "weight": 4} in fit[
        "enabled"
    ]
    assert {"profile": "default-scheduler", "extensionPoint": "filter", "weight": None} in fit[
        "enabled"
    ]
    assert shown("show", "DefaultBinder")["needs"] == ["bind"]
    code, out, _ = run("show", "NodeResourcesFit", "--config", str(file))
    assert code == 0
    assert "score (4)" in out
    code, out, _ = run("list", "--config", str(file))
    assert code == 0
    locality = next(line for line in out.splitlines() if "ImageLocality" in line)
    assert "default-scheduler" not in locality
    assert run("show", "NodeResourceFit") == (
        2, "", 'asched: unknown plugin "NodeResourceFit"; did you mean NodeResourcesFit?\n',
    )  # fmt: skip


SESSIONS = """
apiVersion: asched.dev/v1
kind: AschedConfiguration
batch: [{schedulerName: batch}]
"""


def test_what_takes_part_in_batch_sessions_is_listed_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(SESSIONS)
    found = {(each["kind"], each["name"]): each for each in shown("list", "--config", str(file))}
    gang = found["session plugin", "gang"]
    assert (gang["distribution"], gang["source"]) == (
        "asched",
        "asched.batch.plugins.gang:GangSessionPlugin",
    )
    assert {"job_ready", "job_valid", "preemptable", "on_close"} <= {*gang["callbacks"]}
    # As kube-batch's default configuration has it.
    assert gang["enabled"] == [{"profile": "batch", "place": 1}]
    assert found["session plugin", "drf"]["enabled"] == [{"profile": "batch", "place": 2}]
    assert found["action", "backfill"]["enabled"] == [{"profile": "batch", "place": 2}]
    assert found["action", "reclaim"]["enabled"] == []
    assert ("plugin", "NodeResourcesFit") in found

    code, out, _ = run("list", "--config", str(file))
    assert code == 0
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["backfill"])
    assert "batch: step 2" in line
    assert shown("show", "gang")["callbacks"] == gang["callbacks"]
    code, out, _ = run("show", "reclaim", "--config", str(file))
    assert code == 0
    assert ("Action reclaim" in out, "nowhere" in out) == (True, True)


def test_a_session_plugin_that_cannot_be_loaded_is_told_of_beside_the_others() -> None:
    offers = [
        EntryPoint("Gone", "asched_test_gone:Gone", PLUGIN_GROUP),
        EntryPoint("allocate", "asched.batch.actions.allocate:Allocate", ACTION_GROUP),
    ]
    registry = SessionRegistry.of_entry_points(offers)
    found, (broken,) = describe_all(registry, None)
    assert [(each.name, each.enabled) for each in found] == [("allocate", None)]
    assert broken.startswith('session plugin "Gone": importing asched_test_gone:Gone failed: ')
    with pytest.raises(SessionRegistryError, match="importing asched_test_gone:Gone failed"):
        describe_named(registry, "Gone", None)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Rack", "is no name for a plugin; write small letters, digits and dashes"),
        ("rack_affinity", "is no name for a plugin"),
        ("../rack", "is no name for a plugin"),
        ("a" * 31, "is no name for a plugin"),
        ("asched", "cannot be used: it is the scheduler's own"),
        ("class", "cannot be used: class is a word of Python"),
        ("json", "cannot be used: there is a module json already"),
        ("score-plugin", "the plugin would be called ScorePlugin, which means something else"),
        ("gang-scheduling", "asched 0.1.0 has a plugin GangScheduling"),
    ],
)
def test_names_that_cannot_be_used(tmp_path: Path, name: str, told: str) -> None:
    code, out, err = run("new", name, "--directory", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith(f'asched: "{name}" ')
    assert told in err
    assert err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    there = tmp_path / "rack-affinity"
    there.mkdir()
    code, out, err = run("new", "rack-affinity", "--directory", str(tmp_path))
    assert (code, out, err) == (2, "", f"asched: {there} exists; nothing was written\n")
    assert [*tmp_path.iterdir()] == [there]
    (tmp_path / "file").touch()
    code, _, err = run("new", "rack-affinity", "--directory", str(tmp_path / "file"))
    assert code != 0
    assert err.count("\n") == 1


def test_what_is_written_is_the_template_under_other_names(tmp_path: Path) -> None:
    names = Names.of("asched-rack", PluginRegistry.of())
    assert names == ("asched-rack", "asched_rack", "Rack")
    files = write_distribution(names, tmp_path / "deep" / "asched-rack")
    folder = tmp_path / "deep" / "asched-rack"
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == {*files}
    assert len(files) == len(template_files(template_folder()))
    text = "".join((folder / file).read_text() for file in files)
    assert "template" not in text.lower()
    assert Path("src/asched_rack/plugin.py") in files
    assert Path(".github/workflows/ci.yaml") in files
    assert [*(tmp_path / "deep").iterdir()] == [folder]
