"""``asched explain`` for jobs."""

from __future__ import annotations

import json
from pathlib import Path

import anyio.to_thread
import pytest
from typer.testing import CliRunner, Result

from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.lookup import AuditError, PodName
from asched.cli.main import app
from asched.config.registry import PluginRegistry
from asched.journal import open_journal
from asched.state.records import Assigned
from asched.state.session_records import SessionExecuted
from tests.batch_world.jobs import BATCH, add_gang, bound, prepare, recorded, unschedulable
from tests.daemon.world import World, world


async def explained(w: World, name: str, session: int | None = None) -> JobExplanation:
    async with open_journal(str(w.journal), read_only=True) as store:
        registry = PluginRegistry.discover()
        return await explain_job(store, PodName.parse(name), registry.load, session=session)


async def test_oversized_gang_is_explained(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        prepare(w)
        add_gang(w, "huge", 6, "2")
        async with w.daemon(BATCH):
            await w.until(lambda: bool(unschedulable(w, "huge")))
        found = await explained(w, "default/huge")
        assert found.reproduced is True
        assert not found.admitted
        assert found.reasons[0].startswith("gang short by 6: 0 of 6 required pods have nodes")
        assert any("Insufficient cpu" in reason for reason in found.reasons)
        assert (found.queue, found.min_available, found.phase) == ("default", 6, "Pending")
        assert found.pods_before == {"Pending": 6}
        assert found.steps
        by_pod = await explained(w, "huge-3")
        assert by_pod == found


async def test_admitted_gang_has_no_reasons(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        prepare(w)
        add_gang(w, "fits", 4, "2")
        async with w.daemon(BATCH):
            await w.until(lambda: bound(w, "fits") == 4)
        sessions = [r.number for r in await recorded(w) if isinstance(r, SessionExecuted)]
        # The first session may have observed only part of the gang.
        found = [await explained(w, "fits", number) for number in sessions]
        admitting = [one for one in found if one.admitted and one.pods_before.get("Pending")]
        assert len(admitting) == 1
        assert admitting[0].reasons == ()
        assert admitting[0].pods_after == {"Binding": 4}
        assert all(one.reproduced for one in found)


async def test_overused_queue_is_a_reason(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        prepare(w, "gold", "iron")
        add_gang(w, "first", 1, "2", queue="gold", pods=2)
        add_gang(w, "rival", 1, "2", queue="iron", pods=9)
        async with w.daemon(BATCH):
            await w.until(lambda: bound(w, "first") + bound(w, "rival") == 4)
            add_gang(w, "second", 3, "2", queue="gold")
            # A session may have observed the group before its pods.
            await w.until(lambda: "3/3" in unschedulable(w, "second").get("message", ""))
        found = await explained(w, "second")
        usage = found.queue_usage
        assert usage is not None
        assert usage.name == "gold"
        assert usage.overused
        assert usage.share == pytest.approx(1.0)
        overuse = "queue gold is overused: it has 100% of its deserved share"
        assert any(overuse in reason for reason in found.reasons)


async def test_ignored_job_is_explained(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        add_gang(w, "lost", 1, "1", queue="nowhere")
        add_gang(w, "found", 1, "1")
        async with w.daemon(BATCH):
            await w.until(lambda: bound(w, "found") == 1)
        found = await explained(w, "lost")
        assert found.reasons == ("queue not found",)
        assert not found.admitted
        with pytest.raises(AuditError, match="no job default/fund at that time; did you mean"):
            await explained(w, "default/fund")


async def invoked(*arguments: str) -> Result:
    """``asched explain`` in a separate thread, because it runs an event loop."""
    return await anyio.to_thread.run_sync(CliRunner().invoke, app, ["explain", *arguments])


async def test_pod_is_explained_by_its_session(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        prepare(w)
        add_gang(w, "early", 2, "1")
        async with w.daemon(BATCH):
            await w.until(lambda: bound(w, "early") == 2)
            add_gang(w, "late", 2, "1")
            await w.until(lambda: bound(w, "late") == 2)
    number = {
        name: next(
            r.attempt for r in await recorded(w) if isinstance(r, Assigned) and name in r.key
        )
        for name in ("early", "late")
    }
    assert number["early"] < number["late"]
    for name, session in number.items():
        shown = await invoked(
            f"default/{name}-0", "--journal", str(tmp_path / "journal.db"), "-o", "json"
        )
        assert json.loads(shown.stdout)["session"] == session
        assert json.loads(shown.stdout)["admitted"]


async def test_explain_command_for_jobs(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        prepare(w)
        add_gang(w, "huge", 3, "1")
        async with w.daemon(BATCH):
            await w.until(lambda: w.condition("huge-2").get("reason") == "Unschedulable")
    journal = ["--journal", str(tmp_path / "journal.db")]
    shown = await invoked("--job", "default/huge", *journal)
    assert shown.exit_code == 0, shown.output
    assert "job default/huge of kube-batch" in shown.stdout
    assert "recomputed from the journal: identical" in shown.stdout
    assert "gang short by" in shown.stdout
    assert "ACTION ALLOCATE" in shown.stdout
    of_pod = await invoked("default/huge-1", *journal, "-o", "json")
    assert of_pod.exit_code == 0, of_pod.output
    assert json.loads(of_pod.stdout)["job"] == "default/huge"
    assert json.loads(of_pod.stdout)["admitted"] is False
    neither = await invoked(*journal)
    assert neither.exit_code == 2
