"""``asched gate`` with configurations and with virtual environments."""

from __future__ import annotations

import json
import shutil
import sys
import venv
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from typer.testing import CliRunner

import asched
from asched.audit.timeline import time_of
from asched.cli.main import app
from asched.gate import candidate
from asched.gate.agreement import agreement_of
from asched.gate.side import SideRequest, SideResult, side_result
from asched.journal.opening import open_journal
from asched.planning import open as open_history
from asched.planning.workloads import default_scheduler
from tests.audit.recording import REGISTRY
from tests.daemon.external_plugins import Reader
from tests.daemon.test_external_plugins import reading
from tests.daemon.world import registry_with, world

CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
PACKING = (
    CONFIG
    + """profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
"""
)


@pytest.fixture
def sides_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides in this environment are computed by threads: a new process imports for a second."""
    in_process = candidate._side

    async def side(environment: Path | None, request: SideRequest) -> SideResult:
        if environment is not None:
            return await in_process(environment, request)
        return await anyio.to_thread.run_sync(side_result, request)

    monkeypatch.setattr(candidate, "_side", side)


def run_gate(journal: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["gate", "--journal", str(journal), *arguments])


def test_equal_configuration_passes(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(CONFIG)
    ran = run_gate(journal, "--candidate", str(file), "--require", "agreement >= 1", "-o", "json")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert (found["format"], found["verdict"]) == (1, "pass")
    before, after = found["baseline"]["figures"], found["candidate"]["figures"]
    before.pop("cpu_s"), after.pop("cpu_s")
    assert before == after
    assert before["placed"] > 40
    assert found["candidate"]["agreement"]["differences"] == []
    first = time_of(open_history(journal).first_written_ns())
    assert datetime.fromisoformat(found["begin"]) == first, "the journal has fewer than 7 days"


@pytest.mark.usefixtures("sides_here")
def test_other_configuration_fails(journal: Path, tmp_path: Path) -> None:
    file, page = tmp_path / "packing.yaml", tmp_path / "gate.html"
    file.write_text(PACKING)
    ran = run_gate(journal, "--candidate", str(file), "--html", str(page))
    assert ran.exit_code == 1, ran.output
    assert f"fail: {file}" in ran.stdout
    assert "agreement is 0." in ran.stdout
    html = page.read_text()
    assert "<script" not in html
    assert "packing.yaml: fail" in html
    assert "large-" in html


@pytest.mark.usefixtures("sides_here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --candidate"),
        (["--candidate", "none.yaml"], "none.yaml"),
        (["--candidate", "."], "no virtual environment"),
        (["--candidate", "bad.yaml"], "bad.yaml:3: "),
        (["--candidate", "ok.yaml", "--require", "waits <= 3"], "waits"),
        (["--candidate", "ok.yaml", "--require", "placed"], "is not a condition"),
        (["--candidate", "ok.yaml", "--candidate", "bad.yaml"], "one configuration file"),
        (["--candidate", "ok.yaml", "--thresholds", "ok.yaml"], "ok.yaml:"),
    ],
)
def test_bad_input(
    journal: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(CONFIG + "profile: []\n")
    Path("ok.yaml").write_text(CONFIG)
    ran = run_gate(journal, *arguments)
    assert (ran.exit_code, ran.stdout) == (2, ""), ran.output
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def environment(folder: Path, *first: Path) -> Path:
    """A virtual environment with these folders on its path, and then the packages of this one."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    places = [*map(str, first), *(place for place in sys.path if Path(place).is_dir())]
    (packages / "given.pth").write_text("\n".join(places) if first else "")
    return folder


def test_other_version_in_an_environment(journal: Path, tmp_path: Path) -> None:
    """A copy of asched in which a score differs: the environment's own code decides."""
    copied = tmp_path / "code" / "asched"
    shutil.copytree(Path(asched.__file__).parent, copied)
    init = copied / "__init__.py"
    init.write_text(init.read_text().replace(asched.__version__, "9.9.9"))
    scoring = copied / "plugins" / "node_resources" / "fit.py"
    text = scoring.read_text()
    assert 'type == "MostAllocated"' in text
    scoring.write_text(text.replace('type == "MostAllocated"', 'type == "LeastAllocated"'))
    folder = environment(tmp_path / "venv", copied.parent)
    ran = run_gate(journal, "--candidate", str(folder), "-o", "json")
    assert ran.exit_code == 1, ran.output
    found = json.loads(ran.stdout)
    assert (found["baseline"]["asched"], found["candidate"]["asched"]) == (
        asched.__version__,
        "9.9.9",
    )
    assert found["baseline"]["figures"]["agreement"] == 1
    assert found["candidate"]["figures"]["agreement"] < 0.9
    failed = [check["column"] for check in found["checks"] if not check["passed"]]
    assert "agreement" in failed


def test_environment_without_asched(journal: Path, tmp_path: Path) -> None:
    folder = environment(tmp_path / "venv")
    ran = run_gate(journal, "--candidate", str(folder))
    assert ran.exit_code == 2
    assert "its asched cannot compute a side of the gate: " in ran.stderr
    assert "No module named 'asched'" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


async def test_agreement_in_a_part_of_a_journal(journal: Path) -> None:
    """The candidate's profiles apply as from a reload; the decisions before do not count."""
    source = open_history(journal).source()
    begin_ns = source.until_ns - 98 * 60 * 10**9
    async with open_journal(str(journal), read_only=True) as store:
        period = msgspec.structs.replace(source, since_ns=begin_ns)
        same = default_scheduler(REGISTRY)
        whole = await agreement_of(store, source, None, REGISTRY.load)
        for scheduler in (None, same):
            part = await agreement_of(store, period, scheduler, REGISTRY.load)
            assert (part.share, part.note) == (1.0, "")
            assert part.rejection_share in (None, 1.0)
            assert 0 < part.bindings < whole.bindings
    assert whole.rejections
    assert (whole.share, whole.rejection_share) == (1.0, 1.0)


def test_days_without_end(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "candidate.yaml"
    file.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    )
    ran = run_gate(journal, "--candidate", str(file), "--days", "inf")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.startswith("asched: Invalid value for '--days'")


async def test_decisions_with_recorded_answers_are_compared(tmp_path: Path) -> None:
    """The candidate lacks the evaluator that the recorded answers are from."""
    file = tmp_path / "open"
    file.write_text("n1")
    async with world(tmp_path, nodes=2) as w:
        async with w.daemon(reading(file), Reader):
            for name in ("one", "two"):
                w.add_pod(name)
            await w.until(lambda: not w.unbound())
        source = open_history(w.journal).source()
        async with open_journal(str(w.journal), read_only=True) as store:
            load = registry_with(Reader).load
            for candidate in (None, default_scheduler(REGISTRY)):
                found = await agreement_of(store, source, candidate, load)
                assert (found.bindings, found.note) == (2, "")
