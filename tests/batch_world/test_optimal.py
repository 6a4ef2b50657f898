"""plugins/asched-optimal in a whole daemon: gangs placed by the solver, repeated by a replay."""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread
from typer.testing import CliRunner

from asched.cli.main import app
from asched.state.session_records import SessionExecuted, SessionsLoaded
from tests.batch_world.jobs import (
    POD_GROUPS,
    add_gang,
    add_member,
    bound,
    check_replay,
    prepare,
    recorded,
    unschedulable,
)
from tests.daemon.world import OWN, World, world

GREEDY = "allocate, backfill"
OPTIMAL = f"optimal, {GREEDY}"
SIZES = ("1", "1", "3")


def config(folder: Path, actions: str) -> str:
    conf = folder / "kube-batch.yaml"
    tiers = ("priority", "gang"), ("drf", "predicates", "proportion", "nodeorder")
    lines = [f"- plugins: [{', '.join(f'{{name: {name}}}' for name in tier)}]" for tier in tiers]
    conf.write_text("\n".join([f'actions: "{actions}"', "tiers:", *lines]))
    return OWN + f"batch: [{{period: 20ms, conf: {conf}}}]\n"


def add_split_gang(w: World) -> None:
    """The small pods come first: a greedy action puts one on the node that the large pod needs."""
    w.cluster.create("priorityclasses", {"metadata": {"name": "first"}, "value": 10})
    group = {"metadata": {"name": "split"}, "spec": {"minMember": len(SIZES), "queue": "default"}}
    w.cluster.create(POD_GROUPS, group)
    for number, cpu in enumerate(SIZES):
        small = {"priorityClassName": "first"} if cpu == "1" else {}
        add_member(w, "split", number, cpu, **small)


async def test_solver_places_a_gang_that_greedy_does_not_and_replay_is_exact(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        prepare(w)
        w.add_node("a", cpu="2")
        w.add_node("b", cpu="3")
        add_split_gang(w)
        async with w.daemon(config(tmp_path, GREEDY)):
            await w.until(lambda: bool(unschedulable(w, "split")))
        assert bound(w, "split") == 0
        async with w.daemon(config(tmp_path, OPTIMAL)):
            await w.until(lambda: bound(w, "split") == len(SIZES))
        assert [w.node_of(f"split-{n}") for n in range(3)] == ["a", "a", "b"]
        # What the solver placed counts after a restart, for the next gang.
        w.add_node("c", cpu="4")
        add_gang(w, "more", 2, "2")
        add_gang(w, "huge", 2, "4")
        async with w.daemon(config(tmp_path, OPTIMAL)):
            await w.until(lambda: bound(w, "more") == 2 and bool(unschedulable(w, "huge")))
        assert {w.node_of(f"more-{n}") for n in range(2)} == {"c"}
        records = await recorded(w)
        assert any(isinstance(record, SessionExecuted) for record in records)
        loaded = [r.sessions[0].actions for r in records if isinstance(r, SessionsLoaded)]
        assert ("optimal", "allocate", "backfill") in loaded
        assert await check_replay(w) > 0
        verify = ["replay", "--verify", "--journal", str(w.journal)]
        ran = await to_thread.run_sync(lambda: CliRunner().invoke(app, verify))
        assert ran.exit_code == 0, ran.output
