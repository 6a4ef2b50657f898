"""Turn time and dates when the wall clock is set."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import anyio
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from asched.cli.main import app
from asched.daemon.daemon import Daemon
from asched.daemon.engine.turn_loop import HOLD_S, STEP_S, SteadyTime
from asched.daemon.process import Runtime
from asched.daemon.telemetry.metrics import Metrics
from asched.journal import open_journal
from asched.journal.codec import CLOCK_SUBJECT
from asched.journal.memory import MemoryStore
from asched.journal.statistics import last_seq_at
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from asched.state.cluster import PlacementState
from asched.state.records import AnyRecord, ClockStepped, EngineStarted, TurnStarted
from tests.daemon.test_third_party_plugins import Never, enabled
from tests.daemon.world import World, world

YEAR_S = 365 * 24 * 3600
NOW_S = 1_800_000_000


class TwoClocks(Clock):
    """A wall clock and a monotonic clock that tests set."""

    def __init__(self, wall_s: float = NOW_S) -> None:
        self.wall_ns = round(wall_s * NS_PER_S)
        self.monotonic_now_ns = 0

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.monotonic_now_ns

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)

    def block(self, delay_s: float) -> None:
        self.advance(delay_s)

    def advance(self, delay_s: float) -> None:
        self.wall_ns += round(delay_s * NS_PER_S)
        self.monotonic_now_ns += round(delay_s * NS_PER_S)

    def step(self, step_s: float) -> None:
        self.wall_ns += round(step_s * NS_PER_S)


def date_s(time: SteadyTime) -> float:
    return (time.now_ns() + time.offset_ns) / NS_PER_S


def test_short_step_to_2040_leaves_no_trace() -> None:
    clock = TwoClocks()
    time = SteadyTime(clock, not_before_ns=0)
    clock.step(14 * YEAR_S)
    assert date_s(time) == NOW_S
    clock.advance(HOLD_S - 1)
    assert date_s(time) == NOW_S + HOLD_S - 1
    clock.step(-14 * YEAR_S)
    clock.advance(1)
    assert date_s(time) == NOW_S + HOLD_S
    assert time.offset_ns == 0


def test_dates_return_from_a_lasting_step_and_turn_time_never_steps() -> None:
    clock, metrics = TwoClocks(), Metrics()
    time = SteadyTime(clock, 0, 0, metrics.engine)
    value = metrics.registry.get_sample_value
    clock.step(14 * YEAR_S)
    time.now_ns()
    assert value("asched_clock_held_seconds") == 14 * YEAR_S
    clock.advance(HOLD_S)
    assert date_s(time) == NOW_S + 14 * YEAR_S + HOLD_S
    assert time.now_ns() == (NOW_S + HOLD_S) * NS_PER_S
    assert value("asched_clock_held_seconds") == 0
    clock.step(-14 * YEAR_S)
    time.now_ns()
    clock.advance(HOLD_S)
    assert date_s(time) == NOW_S + 2 * HOLD_S
    assert time.now_ns() == (NOW_S + 2 * HOLD_S) * NS_PER_S
    assert value("asched_clock_steps_total") == 2


def test_small_difference_is_approached_slowly() -> None:
    clock = TwoClocks()
    time = SteadyTime(clock, not_before_ns=0)
    clock.step(0.5)
    assert date_s(time) == NOW_S
    clock.advance(100)
    assert date_s(time) == NOW_S + 100.1
    clock.advance(1000)
    assert date_s(time) == NOW_S + 1100.5
    assert time.offset_ns == 0


def test_start_after_clock_was_set_back() -> None:
    """The journal's last date is in 2040."""
    last_ns = (NOW_S + 14 * YEAR_S) * NS_PER_S
    clock = TwoClocks()
    time = SteadyTime(clock, last_ns)
    assert time.now_ns() == last_ns
    assert date_s(time) == NOW_S
    clock.advance(3)
    assert time.now_ns() == last_ns + 3 * NS_PER_S
    # The next start continues with the recorded offset.
    clock.advance(60)
    again = SteadyTime(clock, time.now_ns(), time.offset_ns)
    assert (again.now_ns(), again.offset_ns) == (time.now_ns(), time.offset_ns)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1000 * NS_PER_S),
            st.sampled_from((0, 1, 10**6, -(10**6), NS_PER_S, -3600 * NS_PER_S, 10**18)),
        )
    )
)
def test_turn_time_follows_monotonic_clock(steps: list[tuple[int, int]]) -> None:
    """So backoffs and timeouts take as long as they should."""
    clock = TwoClocks()
    time = SteadyTime(clock, not_before_ns=0)
    before_ns = time.now_ns()
    for passed_ns, step_ns in steps:
        clock.monotonic_now_ns += passed_ns
        clock.wall_ns += passed_ns + step_ns
        now_ns = time.now_ns()
        assert abs(now_ns - before_ns - passed_ns) <= passed_ns / 1000
        before_ns = now_ns


@given(st.lists(st.sampled_from((-(10**6), -10, 0.3, 10, 10**8))))
def test_dates_become_right_after_any_steps(steps: list[float]) -> None:
    clock = TwoClocks(10**9)
    time = SteadyTime(clock, not_before_ns=0)
    for step_s in steps:
        clock.step(step_s)
        clock.advance(1)
        time.now_ns()
    clock.advance(HOLD_S)
    time.now_ns()
    assert abs(date_s(time) - clock.wall_ns / NS_PER_S) < STEP_S


async def test_journal_records_step_and_dates_recover(tmp_path: Path) -> None:
    clock = Steppable()
    async with world(tmp_path, nodes=1) as w:
        runtime = Runtime(clock, anyio.to_thread.run_sync, "test")
        async with w.daemon(runtime=runtime) as daemon:
            await scheduled(w, daemon, "before")
            clock.step(14 * YEAR_S)
            daemon.engine.check_clock()
            await scheduled(w, daemon, "held")
            clock.skip(HOLD_S)
            await scheduled(w, daemon, "wrong")
            clock.step(-14 * YEAR_S)
            daemon.engine.check_clock()
            clock.skip(HOLD_S)
            await scheduled(w, daemon, "after")
        year = datetime.now(UTC).year
        for pod, expected in (("before", 0), ("held", 0), ("wrong", 14), ("after", 0)):
            years = await anyio.to_thread.run_sync(observed_years, w.journal, pod)
            # Some leap days less.
            assert years <= {year + expected, year + expected - (expected > 0)}
        async with open_journal(str(w.journal), read_only=True) as store:
            turns = [s.record.now_ns async for s in store.read() if type(s.record) is TurnStarted]
            offsets = [s.record async for s in store.read(subject=CLOCK_SUBJECT)]
        assert turns == sorted(turns)
        assert turns[-1] - turns[0] < (2 * HOLD_S + 120) * NS_PER_S
        assert [round(o.offset_ns / NS_PER_S) for o in offsets if type(o) is ClockStepped] == [
            14 * YEAR_S,
            0,
        ]
    replay = ["replay", "--verify", "--journal", str(w.journal)]
    result = await anyio.to_thread.run_sync(CliRunner().invoke, app, replay)
    assert "all identical" in result.stdout


async def scheduled(w: World, daemon: Daemon, pod: str) -> None:
    """Schedule a pod, and wait until the journal holds its binding."""
    w.add_pod(pod)
    key = f"default/{pod}"
    await w.until(lambda: w.node_of(pod) == "n0")
    while daemon.cluster.pods[key].placement_state is not PlacementState.BOUND:
        await anyio.wait_all_tasks_blocked()


class Steppable(Clock):
    """The machine's clocks plus steps."""

    def __init__(self) -> None:
        self._real = Runtime.of_this_process().clock
        self._step_ns = self._skipped_ns = 0

    def time_ns(self) -> int:
        return self._real.time_ns() + self._step_ns + self._skipped_ns

    def monotonic_ns(self) -> int:
        return self._real.monotonic_ns() + self._skipped_ns

    async def sleep(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)

    def block(self, delay_s: float) -> None:
        self._real.block(delay_s)

    def step(self, step_s: int) -> None:
        """Set the wall clock."""
        self._step_ns += step_s * NS_PER_S

    def skip(self, skip_s: float) -> None:
        """Let time pass."""
        self._skipped_ns += round(skip_s * NS_PER_S)


def observed_years(journal: Path, pod: str) -> set[int]:
    """The years in a pod's timeline."""
    arguments = ["history", pod, "-o", "json", "--journal", str(journal)]
    result = CliRunner().invoke(app, arguments, prog_name="asched")
    assert result.exit_code == 0, result.stderr
    return {int(text[:4]) for text in result.stdout.split('"at": "')[1:]}


async def test_record_at_a_date_is_found_between_steps() -> None:
    store = MemoryStore()
    await store.claim("test", claimed_at_ns=1)

    async def write(date: int, *records: AnyRecord) -> None:
        number = (await store.head()).seq
        await store.append([TurnStarted(number), *records], written_at_ns=date)

    started = EngineStarted("test", 1)
    for date in (10, 20, 30):
        await write(date, started)  # records 1 to 6
    await write(1000, ClockStepped(970))  # 7, 8
    await write(1010, started)  # 9, 10
    await write(35, ClockStepped(-5))  # 11, 12
    await write(45, started)  # 13, 14
    found = [await last_seq_at(store, date) for date in (9, 10, 25, 30, 34, 35, 44, 45, 2000)]
    # Records with wrong dates come before those of 35.
    assert found == [0, 2, 4, 6, 6, 12, 12, 14, 14]


async def test_overdue_permit_before_sync_does_not_fill_journal(tmp_path: Path) -> None:
    """A Permit timeout expires while a restarted daemon cannot list, so it may not decide yet."""
    async with world(tmp_path, nodes=1) as w:
        w.faults.on_request = lambda verb, resource: w.touch()
        async with w.daemon(enabled("Never"), Never) as daemon:
            w.add_pod("held")
            while not daemon.cluster.waiting:
                await anyio.wait_all_tasks_blocked()
            w.faults.respond(500, count=10_000, verb="list", resource="nodes")
        async with w.daemon(enabled("Never"), Never) as daemon:
            assert daemon.cluster.waiting
            await w.until(
                lambda: w.faults.injected >= 5
            )  # at least 1 s; the Permit timeout is 0.5 s
            assert daemon.cluster.waiting
            assert daemon.engine.stats.turns < 20
        async with open_journal(str(w.journal), read_only=True) as store:
            assert (await store.head()).seq < 100
