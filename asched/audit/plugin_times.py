"""How long the calls of plugins take: recent decisions are repeated, and each call is timed.

The journal holds no durations. So these are the durations of the process that asks, on the recorded
state, for the same calls.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import msgspec
import numpy as np

from asched.audit.lookup import fold_before
from asched.audit.replay import ReplayVerifier, first_replayable
from asched.framework.runtime.observation import OBSERVATION, CallObserver
from asched.framework.runtime.profile import PluginLoader
from asched.journal.store import JournalStore
from asched.state.records import Assigned, AttemptFailed, Rejected

Args = ParamSpec("Args")
R = TypeVar("R")

ATTEMPTS: Final = 100
"""Attempts that are repeated at most."""
MAX_RECORDS: Final = 5_000
"""Records that are searched for them."""
_NS_PER_S: Final = 1e9


class PluginCallTimes(msgspec.Struct, frozen=True, rename="camel"):
    """The calls of a plugin at an extension point."""

    plugin: str
    extension_point: str
    """As in kube-scheduler's metrics: ``Filter``, ``PreScore``."""
    calls: int
    p50_s: float
    longest_s: float
    total_s: float


class PluginTimes(msgspec.Struct, frozen=True, rename="camel"):
    """The calls for recent attempts, the longest total first."""

    first_seq: int
    """The first repeated record; 0 for none."""
    seq: int
    attempts: int
    problem: str
    """Why not all attempts were repeated; empty if they were."""
    times: tuple[PluginCallTimes, ...]


class _CallTimer(CallObserver):
    """Adds up the durations of calls."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.durations_ns: dict[tuple[str, str], list[int]] = defaultdict(list)

    def enter(self, point: str) -> None:
        """Parts of a cycle between calls are not timed."""

    def wrap(self, plugin: str, point: str, method: Callable[Args, R]) -> Callable[Args, R]:
        durations_ns, now_ns = self.durations_ns[plugin, point], self._now_ns

        def timed(*args: Args.args, **kwargs: Args.kwargs) -> R:
            began_ns = now_ns()
            try:
                return method(*args, **kwargs)
            finally:
                durations_ns.append(now_ns() - began_ns)

        return timed


async def plugin_times(
    journal: JournalStore, load: PluginLoader, seq: int, now_ns: Callable[[], int]
) -> PluginTimes:
    """The calls of plugins for the last attempts up to record ``seq``. ``now_ns`` is a monotonic
    clock.

    Raises :class:`~asched.journal.errors.JournalError`, and ProfileError for a recorded plugin that
    is not installed.
    """
    first = await _first_attempt(journal, seq)
    if not first:
        return PluginTimes(0, seq, 0, "", ())
    verifier = ReplayVerifier(await fold_before(journal, load, first), complete=first <= 1)
    timer, problem, attempts = _CallTimer(now_ns), "", 0
    async for stored in journal.read(first - 1, seq):
        OBSERVATION.calls = timer
        try:
            divergence = verifier.verify(stored.seq, stored.record)
        finally:
            OBSERVATION.calls = None
        if divergence is not None:
            problem = f"record {divergence.seq} is not repeated: {divergence.reason}"
            break
        attempts += isinstance(stored.record, Assigned | Rejected | AttemptFailed)
    return PluginTimes(first, seq, attempts, problem, _times(timer))


async def _first_attempt(journal: JournalStore, seq: int) -> int:
    """The first of the last attempts; 0 if there is none."""
    attempts: deque[int] = deque(maxlen=ATTEMPTS)
    begin = max(await first_replayable(journal) - 1, seq - MAX_RECORDS)
    async for stored in journal.read(begin, seq):
        if isinstance(stored.record, Assigned | Rejected | AttemptFailed):
            attempts.append(stored.seq)
    return attempts[0] if attempts else 0


def _times(timer: _CallTimer) -> tuple[PluginCallTimes, ...]:
    found = []
    for (plugin, point), durations_ns in timer.durations_ns.items():
        if durations_ns:
            seconds = np.array(durations_ns) / _NS_PER_S
            p50_s, longest_s = float(np.median(seconds)), float(seconds.max())
            total_s = float(seconds.sum())
            found.append(
                PluginCallTimes(plugin, point, len(durations_ns), p50_s, longest_s, total_s)
            )
    return tuple(sorted(found, key=lambda one: -one.total_s))
