"""Comparisons on a recorded history, and the pytest fixtures."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from asched.audit.lookup import AuditError
from asched.journal.opening import open_journal
from asched.testing import profile, profile_setup
from asched.testing.history import diff, diff_async
from tests.audit.whatif.histories import store_by_turns
from tests.cli.test_diff import two_nodes
from tests.testing.spreading import Teams

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    """Two pods placed in sequence on two empty nodes, and an unschedulable one."""
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await store_by_turns(two_nodes().records, store)
    return path


PACKS = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]
  plugins: {score: {disabled: [{name: NodeResourcesBalancedAllocation}]}}
"""


async def test_diff_compares_setups(journal: Path) -> None:
    assert (await diff_async(journal)).equal
    default = await diff_async(journal, profile())
    assert default.equal
    packed = await diff_async(journal, profile_setup(PACKS))
    (elsewhere,) = packed.placed_elsewhere
    assert (elsewhere.pod, packed.names[1]) == ("default/<i>p1", "candidate")
    with_plugin = await diff_async(str(journal), Teams)
    assert with_plugin.names == ("recorded configuration", "recorded configuration with Teams")
    assert with_plugin.equal
    changed = await diff_async(journal, changes="-NodeResourcesFit")
    assert [pod.pod for pod in changed.placed_in_candidate_only] == ["default/huge"]
    with pytest.raises(AuditError, match="has no profile default-scheduler"):
        await diff_async(
            journal, profile_setup(PACKS.replace("- plugin", "- schedulerName: x\n  plugin", 1))
        )
    with pytest.raises(AuditError, match="no records of that time"):
        await diff_async(journal, since=datetime(2040, 1, 1, tzinfo=UTC))


TESTS = """
from tests.testing.spreading import Forgetful, Teams
from asched.testing import nodes, pods, profile

class Declared(Forgetful):
    name, api_version, pure = "Declared", 1, False

def test_declared(asched_schedule):
    assert asched_schedule(profile(Declared, alone=True), nodes(7), pods(5)).nodes

def test_pure(asched_schedule):
    assert len(asched_schedule(profile(Teams, alone=True), nodes(2), pods(2)).nodes) == 2

def test_impure(asched_schedule):
    assert asched_schedule(profile(Forgetful, alone=True), nodes(7), pods(5)).nodes

def test_as_recorded(asched_diff):
    assert asched_diff(Teams).equal
"""


def test_fixtures_are_available_to_pytest(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)

    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    output = subprocess.run(
        [*words, "--asched-journal", str(journal)],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    ).stdout  # fmt: skip
    assert "ERROR at teardown of test_impure" in output
    assert "repeated decisions differ at record" in output
    assert "4 passed, 1 error" in output


def test_diff_leaves_journal_unmodified(journal: Path) -> None:
    before = journal.read_bytes()
    assert diff(journal, Teams).recorded is not None
    assert journal.read_bytes() == before
