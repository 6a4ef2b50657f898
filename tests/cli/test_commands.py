"""The command line: what it prints, and that mistakes are lines and exit codes, not tracebacks."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from asched import __version__
from asched.cli import main as root
from asched.cli.main import COMMANDS, CommandSource, app

KUBE = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
runner = CliRunner()


def run(*args: str) -> tuple[int, str, str]:
    result = runner.invoke(app, list(args), prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def test_version() -> None:
    assert run("--version") == (0, f"asched {__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_command(args: tuple[str, ...]) -> None:
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    for name, source in COMMANDS.items():
        assert name in out
        assert source.summary in " ".join(out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_of_a_command_what_its_own_help_says(name: str) -> None:
    command = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
    assert (command.help or "").startswith(COMMANDS[name].summary.removesuffix("."))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("no-such",), "asched: No such command 'no-such'; see asched --help\n"),
        (("--no-such",), "asched: No such option: --no-such; see asched --help\n"),
        (("plugins",), "asched: Missing command; see asched plugins --help\n"),
        (("config", "check"), "asched: Missing argument 'file'; see asched config check --help\n"),
        (
            ("plugins", "list", "-o", "xml"),
            (
                "asched: Invalid value for '--output' / '-o': 'xml' is not one of 'table', 'json';"
                " see asched plugins list --help\n"
            ),
        ),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(args: tuple[str, ...], message: str) -> None:
    assert run(*args) == (2, "", message)


def test_plugins_list() -> None:
    code, out, err = run("plugins", "list")
    assert (code, err) == (0, "")
    assert out.split()[:4] == ["NAME", "DISTRIBUTION", "VERSION", "EXTENSION"]
    assert "NodeResourcesFit" in out
    code, out, _ = run("plugins", "list", "-o", "json")
    found = {plugin["name"]: plugin for plugin in json.loads(out)}
    fit = found["NodeResourcesFit"]
    assert fit["distribution"] == "asched"
    assert "filter" in fit["extensionPoints"]
    assert {argument["name"] for argument in fit["arguments"]} >= {"scoringStrategy"}
    assert fit["scope"] == "amounts"


def test_plugins_list_goes_on_past_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[asched.plugins]\nBroken = no_such_module:Broken\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = run("plugins", "list")
    assert code == 1
    assert "PrioritySort" in out
    assert err == (
        'plugin "Broken" of broken 1.0: importing no_such_module:Broken failed:'
        " ModuleNotFoundError: No module named 'no_such_module'\n"
    )


def test_config_check_prints_the_resolved_profile(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        KUBE
        + "profiles:\n- plugins:\n    score:\n      enabled: [{name: ImageLocality, weight: 7}]\n"
    )
    code, out, err = run("config", "check", str(file))
    assert (code, err) == (0, "")
    assert "Profile default-scheduler" in out
    assert "ImageLocality (7), TaintToleration (3)" in out
    code, out, _ = run("config", "check", str(file), "-o", "json")
    assert json.loads(out)["profiles"][0]["points"]["score"][0] == {
        "name": "ImageLocality",
        "weight": 7,
    }
    code, as_yaml, _ = run("config", "check", str(file), "-o", "yaml")
    assert yaml.safe_load(as_yaml) == json.loads(out)


def test_config_check_tells_every_mistake_and_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(KUBE + "parallelism: many\nprofile: []\n")
    code, out, err = run("config", "check", str(file))
    assert (code, out) == (2, "")
    assert err == (
        f'{file}:3: document 1: parallelism: expected an integer, got the string "many"\n'
        f"{file}:4: document 1: profile: unknown field; did you mean profiles?\n"
    )


def test_the_defaults_are_a_file_that_means_the_defaults(tmp_path: Path) -> None:
    code, written, err = run("config", "defaults")
    assert (code, err) == (0, "")
    file = tmp_path / "defaults.yaml"
    file.write_text(written)
    empty = tmp_path / "empty.yaml"
    empty.write_text(KUBE)
    _, of_defaults, err = run("config", "check", str(file), "-o", "json")
    _, of_empty, _ = run("config", "check", str(empty), "-o", "json")
    assert err == ""
    left, right = json.loads(of_defaults), json.loads(of_empty)
    assert left["profiles"] == right["profiles"]
    assert left["settings"] == right["settings"]
    assert {**left["scheduler"], "profiles": []} == right["scheduler"]
    _, as_json, _ = run("config", "defaults", "-o", "json")
    assert json.loads(as_json) == list(yaml.safe_load_all(written))


@pytest.fixture
def failing_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "failing_command.py").write_text(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef fail() -> None:\n    raise RuntimeError('it\\nbroke')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(COMMANDS, "fail", CommandSource("failing_command", "Fail."))
    return "fail"


def test_a_failure_is_one_line_that_says_how_to_see_more(
    failing_command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(root.DEBUG_ENV, raising=False)
    code, out, err = run(failing_command)
    assert (code, out) == (1, "")
    assert err == (
        "asched: failed: RuntimeError: it broke (ASCHED_DEBUG=1 or asched --debug shows where)\n"
    )
    for args, variable in (((failing_command,), "1"), (("--debug", failing_command), "")):
        monkeypatch.setenv(root.DEBUG_ENV, variable)
        result = runner.invoke(app, list(args), prog_name="asched")
        assert isinstance(result.exception, RuntimeError)


def subprocess_run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "asched", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **env},
    )


def test_a_real_process() -> None:
    assert subprocess_run("--version").stdout == f"asched {__version__}\n"
    refused = subprocess_run("config", "check", "no-such-file.yaml")
    assert (refused.returncode, refused.stdout, refused.stderr) == (
        2,
        "",
        "no-such-file.yaml: cannot be read: No such file or directory\n",
    )


def test_a_start_imports_only_what_it_needs() -> None:
    code = (
        "import sys\nfrom asched.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print([m for m in ('rich.table', 'numpy', 'yaml', 'sqlalchemy', 'aiohttp')"
        " if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


def test_completion_knows_commands_and_their_subcommands() -> None:
    for typed, index, expected in (("asched ", "1", "plugins"), ("asched config ", "2", "check")):
        done = subprocess_run(_ASCHED_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=index)
        assert expected in done.stdout.split()
        assert done.stderr == ""


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.pem"
    certificate.touch()
    assert run("apiserver", "--tls-certificate", str(certificate)) == (
        2, "", "asched: --tls-certificate and --tls-key go together\n",
    )  # fmt: skip
