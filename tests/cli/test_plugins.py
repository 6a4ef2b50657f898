"""``asched plugins``: descriptions of plugins, and the checks of the contract."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asched.batch.registry import SessionRegistry
from asched.cli.main import app
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

SCORES_ONE = "def score(self, state, pod, node): return 1"
WRONG = {
    "NoDoc": ("documentation: no docstring: NoDoc", "ScorePlugin", None, SCORES_ONE),
    "Short": (
        "signatures: score must take state, pod, node",
        "ScorePlugin",
        "S",
        "def score(self, pod): return 1",
    ),
    "Late": (
        "signatures: filter must not be asynchronous",
        "FilterPlugin",
        "L",
        "async def filter(self, state, pod, node): return SUCCESS",
    ),
    "High": (
        "results: plugin High at Score: a score of 101 or 101 is outside 0..100",
        "ScorePlugin",
        "H",
        "def score(self, state, pod, node): return 101",
    ),
    "Split": (
        (
            "forms of filter: pod default/pending-0: on node-0 filter returns Success, filter_all"
            " Unschedulable (no)"
        ),
        "FilterPlugin, FilterAllPlugin",
        "F",
        (
            "def filter(self, state, pod, node): return SUCCESS\n"
            "    def filter_all(self, state, pod, nodes):\n"
            "        import numpy as np\n"
            "        everywhere = np.ones(nodes.size, bool)\n"
            "        return FilterResult.reject(everywhere, Status.unschedulable('no'))"
        ),
    ),
    "Uneven": (
        "forms of score: pod ",
        "ScorePlugin, ScoreAllPlugin",
        "U",
        (
            "def score(self, state, pod, node): return 1\n"
            "    def score_all(self, state, pod, nodes): return nodes.pod_count * 0"
        ),
    ),
    "Counts": (
        "purity: repeated decisions differ: ",
        "ScorePlugin",
        "C",
        (
            "def score(self, state, pod, node):\n"
            "        seen.append(1)\n"
            "        return len(seen) * 37 % 101"
        ),
    ),
    "Far": (
        "scope: it reads more than Scope.NODE_OBJECT allows: ",
        "ScorePlugin",
        "F",
        (
            "scope = Scope.NODE_OBJECT\n"
            "    def score(self, state, pod, node): return max(0, 100 - 30 * node.pod_count)"
        ),
    ),
    "Meddles": (
        "no mutation: it modified Node node-0",
        "ScorePlugin",
        "M",
        "def score(self, state, pod, node):\n        node.labels['seen'] = 'yes'\n        return 1",
    ),
    "Peeks": (
        "scope: its PreFilter or PreScore reads nodes, ",
        "PreScorePlugin, ScorePlugin",
        "P",
        (
            "scope = Scope.NODE\n"
            "    def pre_score(self, state, pod, nodes):\n"
            "        return SUCCESS if nodes.size else Status.skip()\n"
            "    def score(self, state, pod, node): return 1"
        ),
    ),
    "Silent": (
        "events: it can reject pods and has no EnqueueExtensions: ",
        "FilterPlugin",
        "S",
        "def filter(self, state, pod, node): return SUCCESS",
    ),
    "Deaf": (
        "events: it can reject pods and registers an empty list of events: ",
        "FilterPlugin, EnqueueExtensions",
        "D",
        (
            "def filter(self, state, pod, node): return SUCCESS\n"
            "    def events_to_register(self): return ()"
        ),
    ),
    "Needy": (
        "arguments: Object missing required field `most` - at `$.pluginConfig",
        "ScorePlugin",
        "N",
        "",
    ),
}
EXPECTED_NOTES = {
    "Silent": (
        "events: it can reject pods and has no EnqueueExtensions: every event of pods, nodes and"
        " storage requeues them"
    ),
    "Deaf": (
        "events: it can reject pods and registers an empty list of events: they are retried only"
        " when the queue is flushed (unschedulableFlushInterval)"
    ),
    "Needy": "arguments: it requires arguments (most), so it was not run",
    "Peeks": (
        "scope: its PreFilter or PreScore reads nodes, which a plugin of Scope.NODE should not:"
        " results shared between equal pods are recomputed after each change to any node"
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
    """An installed distribution of plugins that each violate the contract in one way."""
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


def test_check_finds_each_violation(wrong: None) -> None:
    code, out, err = run("check", "wrong-plugins")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    for name, (message, *_) in WRONG.items():
        failed = [line for line in lines if line.startswith("failed") and f" {name}: " in line]
        if name in EXPECTED_NOTES:
            assert (failed, f"note    {name}: {EXPECTED_NOTES[name]}" in lines) == ([], True)
        else:
            assert failed[0].startswith(f"failed  {name}: {message}"), failed
    assert 'failed  Gone: loading: plugin "Gone" of Wrong_Plugins 1.2: importing' in out
    clean = [line for line in lines if " Far: " in line and not line.startswith("passed")]
    assert len(clean) == 1


def test_built_in_plugins_pass_all_checks() -> None:
    code, out, err = run("check", "asched", "-o", "json")
    assert (code, err) == (0, ""), out
    found: list[dict[str, str]] = json.loads(out)
    assert {each["outcome"] for each in found} == {"passed"}
    checked = {(each["plugin"], each["check"]) for each in found}
    assert checked >= {("NodeResourcesFit", "forms of filter"), ("GangScheduling", "purity")}


def test_check_rejects_distribution_without_plugins() -> None:
    code, _, err = run("check", "numpy")
    assert code == 2
    assert err.startswith('asched: no installed distribution "numpy" with plugins; installed are: ')
    assert "asched" in err.partition(" are: ")[2]


CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    score: {enabled: [{name: NodeResourcesFit, weight: 4}], disabled: [{name: ImageLocality}]}
"""


def shown(*words: str) -> Any:
    code, out, err = run(*words, "-o", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_show_prints_all_declarations(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG)
    fit = shown("show", "NodeResourcesFit", "--config", str(file))
    assert (fit["pure"], fit["scope"], fit["apiVersion"]) == (True, "resources", 1)
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


def test_every_argument_of_a_built_in_plugin_is_described() -> None:
    _, out, _ = run("list", "-o", "json")
    plugins = [each for each in json.loads(out) if each.get("arguments")]
    assert len(plugins) >= 8
    bare = [
        (plugin["name"], argument["name"])
        for plugin in plugins
        for argument in plugin["arguments"]
        if not argument["summary"]
    ]
    assert bare == []
    code, shown, _ = run("show", "DefaultPreemption")
    assert code == 0
    assert "Percentage of the nodes on which preemption may help." in shown


def test_list_and_show_include_session_plugins_and_actions(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(SESSIONS)
    found = {(each["kind"], each["name"]): each for each in shown("list", "--config", str(file))}
    gang = found["session plugin", "gang"]
    assert (gang["distribution"], gang["source"]) == (
        "asched",
        "asched.batch.plugins.jobs:GangSessionPlugin",
    )
    assert {"job_ready", "job_valid", "preemptable", "on_close"} <= {*gang["callbacks"]}
    # The default configuration of kube-batch.
    assert gang["enabled"] == [{"profile": "batch", "position": 1}]
    assert found["session plugin", "drf"]["enabled"] == [{"profile": "batch", "position": 2}]
    assert found["action", "backfill"]["enabled"] == [{"profile": "batch", "position": 2}]
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


def test_list_reports_broken_session_plugin_next_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = [
        EntryPoint("Gone", "asched_test_gone:Gone", PLUGIN_GROUP),
        EntryPoint("allocate", "asched.batch.actions.allocate:Allocate", ACTION_GROUP),
    ]
    registry = SessionRegistry({}, {}, offers)
    monkeypatch.setattr(SessionRegistry, "discover", lambda: registry)
    problem = 'session plugin "Gone": importing asched_test_gone:Gone failed: '
    listed = CliRunner().invoke(app, ["plugins", "list", "-o", "json"])
    parts = [each for each in json.loads(listed.stdout) if each["kind"] != "plugin"]
    assert [(each["name"], each["enabled"]) for each in parts] == [("allocate", None)]
    assert (listed.exit_code, listed.stderr.startswith(problem)) == (1, True)
    shown = CliRunner().invoke(app, ["plugins", "show", "Gone"])
    assert (shown.exit_code, shown.stderr.startswith(f"asched: {problem}")) == (1, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Rack", "is not a plugin name; use lower-case letters, digits and dashes"),
        ("rack_affinity", "is not a plugin name"),
        ("../rack", "is not a plugin name"),
        ("a" * 31, "is not a plugin name"),
        ("asched", "cannot be used: it is the name of the scheduler"),
        ("class", "cannot be used: class is a Python keyword"),
        ("json", "cannot be used: a module json exists"),
        ("score-plugin", "the plugin would be called ScorePlugin, which has another meaning"),
        ("gang-scheduling", "asched 0.1.0 has a plugin GangScheduling"),
    ],
)
def test_new_rejects_unusable_names(tmp_path: Path, name: str, message: str) -> None:
    code, out, err = run("new", name, "--directory", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith(f'asched: "{name}" ')
    assert message in err
    assert err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    existing = tmp_path / "rack-affinity"
    existing.mkdir()
    code, out, err = run("new", "rack-affinity", "--directory", str(tmp_path))
    assert (code, out, err) == (2, "", f"asched: {existing} exists; nothing was written\n")
    assert [*tmp_path.iterdir()] == [existing]
    (tmp_path / "file").touch()
    code, _, err = run("new", "rack-affinity", "--directory", str(tmp_path / "file"))
    assert code != 0
    assert err.count("\n") == 1


def test_new_writes_renamed_template(tmp_path: Path) -> None:
    names = Names.of("asched-rack", PluginRegistry().including())
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
