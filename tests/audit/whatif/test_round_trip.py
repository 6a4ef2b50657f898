"""A trace extracted from a simulation's journal reproduces the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.audit.history import ALWAYS, Period
from asched.audit.whatif.recorded_history import RecordedHistory, recorded_history
from asched.journal.memory import MemoryStore
from asched.simulator.trace import ObjectRemoved, TraceEvent, WorkloadRun
from asched.state.records import AnyRecord
from tests.audit.recording import REGISTRY
from tests.audit.whatif.histories import owned, period, simulated, store_by_turns
from tests.run_size import examples
from tests.simulator.simulate import at, comes, has, node, pod
from tests.simulator.simulate import simulated as simulated_from
from tests.simulator.test_sessions import Held, pods

SECONDS = st.integers(0, 400)
END_S = 600


@st.composite
def events(draw: st.DrawFn) -> list[TraceEvent]:
    """Nodes, some of them removed; pods of various sizes and priorities, some with a controller."""
    found: list[TraceEvent] = []
    for index in range(draw(st.integers(1, 4))):
        name, joins_s = f"n{index}", draw(st.sampled_from([0, 0, 60]))
        found += has(node(name, draw(st.sampled_from(["1", "2", "4"]))), seconds=joins_s)
        if draw(st.integers(0, 3)) == 0:
            found.append(ObjectRemoved(at(joins_s + 1 + draw(SECONDS)), "Node", name))
    for index in range(draw(st.integers(1, 16))):
        created = pod(
            f"p{index}",
            draw(st.sampled_from(["500m", "1", "2", "3"])),
            grace_s=draw(st.sampled_from([0, 1, 30])),
            priority=draw(st.sampled_from([0, 0, 5, 10])),
        )
        returns = draw(st.booleans())
        if returns:
            created = owned(created, f"set-{index}")
        runs_s = draw(st.none() | st.integers(1, 200))
        found.append(comes(created, draw(SECONDS), runs_s, recreated=returns))
    return found


async def taken_from(records: list[AnyRecord], when: Period = ALWAYS) -> RecordedHistory:
    store = MemoryStore()
    await store_by_turns(records, store)
    return await recorded_history(store, REGISTRY.load, when)


def placements(run: WorkloadRun) -> dict[str, list[tuple[str, int, int | None, int | None]]]:
    return {
        one.uid: [(s.node, s.assigned_ns, s.bound_ns, s.ended_ns) for s in one.placements]
        for one in run.pods
    }


@settings(max_examples=examples(25))
@given(events(), st.integers(0, 3))
async def test_extracted_trace_reproduces_the_simulation(
    history: list[TraceEvent], seed: int
) -> None:
    first = simulated_from(history, end_s=END_S, seed=seed)
    found = await taken_from(first.records)
    assert placements(found.recorded) == placements(first.run)
    assert placements(simulated(found)) == placements(first.run)


@pytest.mark.parametrize("owner", ["", "set-0"])
async def test_victim_that_ends_before_its_grace_period(owner: str) -> None:
    victim = pod("victim", "500m", grace_s=30)
    if owner:
        victim = owned(victim, owner)
    history = [
        *has(node("n0", "500m"), seconds=0),
        comes(victim, 100, 2, recreated=bool(owner)),
        comes(pod("preemptor", "500m", priority=5), 101, None),
    ]
    first = simulated_from(history, end_s=END_S)
    ((_, _, _, ended_ns),) = placements(first.run)["uid-victim"]
    assert ended_ns == at(102)
    found = await taken_from(first.records)
    assert placements(simulated(found)) == placements(first.run)


async def test_extracted_trace_reproduces_batch_sessions(tmp_path: Path) -> None:
    gang = pods("gang", 3, 2, arrival={"every": "10s"}, lifetime={"fixed": "60s"})
    waiting = pods("waiting", 2, 2, arrival={"after": "25s"})
    held = Held(tmp_path, gang, waiting)
    found = await taken_from(held.records)
    assert len(found.scheduler.sessions) == 1
    assert any(len(of_pod) for of_pod in placements(held.run).values())
    assert placements(found.recorded) == placements(held.run)
    assert placements(simulated(found)) == placements(held.run)


async def test_incomplete_gang_at_the_start_of_the_period(tmp_path: Path) -> None:
    gang = pods("gang", 3, 2, arrival={"every": "10s"}, lifetime={"fixed": "60s"})
    held = Held(tmp_path, gang)
    found = await taken_from(held.records, period(15))
    placed = {one.key: one.placements[0].assigned_ns for one in simulated(found).pods}
    assert len(placed) == 3
    # The gang is placed when its third pod exists.
    assert min(placed.values()) >= at(20)
