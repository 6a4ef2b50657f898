"""Time in the engine, which never goes backwards."""

from __future__ import annotations

from pathlib import Path

import anyio
from hypothesis import given
from hypothesis import strategies as st

from asched.daemon.engine.turn_loop import SteadyTime
from asched.journal import open_journal
from asched.kube.timing import Clock
from asched.model.quantity import NS_PER_S
from tests.daemon.test_third_party_plugins import Never, enabled
from tests.daemon.world import world


class TwoClocks(Clock):
    """A wall clock and a monotonic clock that tests set."""

    def __init__(self, wall_ns: int) -> None:
        self.wall_ns = wall_ns
        self.monotonic_now_ns = 0

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.monotonic_now_ns

    async def sleep(self, delay_s: float) -> None:
        self.advance(delay_s)

    def advance(self, delay_s: float) -> None:
        self.wall_ns += round(delay_s * NS_PER_S)
        self.monotonic_now_ns += round(delay_s * NS_PER_S)


def test_time_advances_normally_after_clock_is_set_back() -> None:
    clock = TwoClocks(wall_ns=1000 * NS_PER_S)
    time = SteadyTime(clock, not_before_ns=0)
    assert time.now_ns() == 1000 * NS_PER_S
    clock.wall_ns -= 600 * NS_PER_S
    assert time.now_ns() == 1000 * NS_PER_S
    clock.advance(10)
    assert time.now_ns() == 1010 * NS_PER_S
    clock.advance(600)
    clock.wall_ns += 600 * NS_PER_S
    assert time.now_ns() == 1610 * NS_PER_S


def test_time_starts_at_last_time_of_journal() -> None:
    clock = TwoClocks(wall_ns=10 * NS_PER_S)
    time = SteadyTime(clock, not_before_ns=5000 * NS_PER_S)
    assert time.now_ns() == 5000 * NS_PER_S
    clock.advance(3)
    assert time.now_ns() == 5003 * NS_PER_S


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100 * NS_PER_S), st.integers(-(10**6) * NS_PER_S, 10**6 * NS_PER_S)
        )
    )
)
def test_time_never_falls_behind_either_clock(steps: list[tuple[int, int]]) -> None:
    clock = TwoClocks(wall_ns=10**9 * NS_PER_S)
    time = SteadyTime(clock, not_before_ns=0)
    before_ns = time.now_ns()
    for passed_ns, jump_ns in steps:
        clock.monotonic_now_ns += passed_ns
        clock.wall_ns += passed_ns + jump_ns
        now_ns = time.now_ns()
        assert now_ns >= max(before_ns + passed_ns, clock.wall_ns)
        before_ns = now_ns


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
