"""The command line: output, errors as lines with exit codes, and the imports of ``--help``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from asched import __version__
from asched.apiserver.kubelet import RUN_SECONDS, KubeletTimings
from asched.cli import main as root
from asched.cli.apiserver import apiserver
from asched.cli.main import app
from asched.cli.options import DEFAULT_JOURNAL
from asched.config.settings import JournalSettings

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
    for name, command in commands(typer.main.get_command(app)).items():
        summary = (command.help or "").partition("\n")[0]
        assert f"{name}  " in out
        assert summary in out, "the summary fits on a line of 80 columns"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("no-such",), "asched: No such command 'no-such'; see asched --help\n"),
        (
            ("histroy",),
            "asched: No such command 'histroy'. Did you mean 'history'? See asched --help\n",
        ),
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
def test_usage_error_is_one_line_and_exit_2(args: tuple[str, ...], message: str) -> None:
    assert run(*args) == (2, "", message)


def test_plugins_list_prints_table_and_json() -> None:
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
    assert fit["scope"] == "resources"


def test_plugins_list_continues_after_broken_plugin(
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


def test_config_check_reports_every_mistake_and_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(KUBE + "parallelism: many\nprofile: []\n")
    code, out, err = run("config", "check", str(file))
    assert (code, out) == (2, "")
    assert err == (
        f'{file}:3: document 1: parallelism: expected an integer, got the string "many"\n'
        f"{file}:4: document 1: profile: unknown field; did you mean profiles?\n"
    )


def test_printed_defaults_equal_the_defaults(tmp_path: Path) -> None:
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


def test_unexpected_error_is_one_line_that_names_the_debug_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(group: str) -> str:
        raise RuntimeError("it\nbroke")

    monkeypatch.setattr("asched.cli.config.crd_manifest", fail)
    monkeypatch.delenv(root.DEBUG_ENV, raising=False)
    code, out, err = run("crds")
    assert (code, out) == (1, "")
    assert err == (
        "asched: failed: RuntimeError: it broke (ASCHED_DEBUG=1 or asched --debug shows where)\n"
    )
    for args, variable in ((("crds",), "1"), (("--debug", "crds"), "")):
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


def test_installed_command_prints_version_and_errors() -> None:
    assert subprocess_run("--version").stdout == f"asched {__version__}\n"
    failed = subprocess_run("config", "check", "no-such-file.yaml")
    assert (failed.returncode, failed.stdout, failed.stderr) == (
        2,
        "",
        "no-such-file.yaml: cannot be read: No such file or directory\n",
    )


NOT_FOR_HELP = (
    "aiohttp", "alembic", "kubernetes_asyncio", "numpy", "prometheus_client", "rich.table",
    "sqlalchemy", "structlog", "yaml",
)  # fmt: skip
MAX_MODULES = 350
"""Modules in a process that prints any help. A start takes about 0.5 ms for each."""


def commands(group: Any) -> dict[str, Any]:
    found: dict[str, Any] = group.commands
    return found


def test_help_of_every_command_imports_no_implementation() -> None:
    """All in one process, because imports accumulate."""
    code = f"""
import sys
from typer.main import get_command
from asched.cli.main import app

def show(command, *words):
    app([*words, "--help"], prog_name="asched", standalone_mode=False)
    for name, inner in getattr(command, "commands", {{}}).items():
        show(inner, *words, name)

show(get_command(app))
print([m for m in {NOT_FOR_HELP} if m in sys.modules], len(sys.modules), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("Usage: asched") == 50
    found, count = done.stderr.rsplit(maxsplit=1)
    assert found == "[]"
    assert int(count) <= MAX_MODULES


def test_command_imports_no_other_command() -> None:
    code = """
import atexit, sys
from asched.cli.main import main

atexit.register(lambda: print(*sys.modules, file=sys.stderr))
sys.argv = ["asched", "--debug", "crds"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(done.stderr.split())
    assert "CustomResourceDefinition" in done.stdout
    assert "asched.cli.config" in imported
    assert not {"asched.cli.run", "asched.cli.show", "asched.cli.journal"} & imported


def test_completion_lists_commands_and_subcommands() -> None:
    for typed, index, expected in (("asched ", "1", "plugins"), ("asched config ", "2", "check")):
        done = subprocess_run(_ASCHED_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=index)
        assert expected in done.stdout.split()
        assert done.stderr == ""


def test_certificate_without_key_is_rejected(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.pem"
    certificate.touch()
    message = "asched: --tls-certificate and --tls-key go together\n"
    assert run("apiserver", "--tls-certificate", str(certificate)) == (2, "", message)


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_demo_without_time_limit_is_rejected(seconds: str) -> None:
    line = "Input should be greater than or equal to 0; see asched demo --help"
    message = f"asched: Invalid value for '--timeout': {line}\n"
    assert run("demo", f"--timeout={seconds}") == (2, "", message)


def test_literal_defaults_equal_those_of_the_implementation() -> None:
    assert JournalSettings().url.removeprefix("sqlite+aiosqlite:///") == DEFAULT_JOURNAL
    params = commands(typer.main.get_command(app))["apiserver"].params
    defaults = {param.name: param.default for param in params}
    timings = KubeletTimings()
    assert (defaults["pod_start"], defaults["pod_stop"]) == (timings.start_s, timings.terminate_s)
    assert RUN_SECONDS in (apiserver.__doc__ or "")


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["0"], "--devices '0': the number of devices is 1 to 4096; write COUNT[,NAME=VALUE...]"),
        (["2", "4"], "--devices: each needs a driver of its own, such as driver=nic.example.com"),
    ],
)
def test_bad_devices_are_one_line(devices: list[str], message: str) -> None:
    given = [argument for each in devices for argument in ("--devices", each)]
    code, out, error = run("apiserver", *given)
    assert (code, out) == (2, "")
    assert error.startswith(f"asched: {message}")
    assert error.count("\n") == 1
