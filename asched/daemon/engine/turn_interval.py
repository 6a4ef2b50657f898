"""How far turns are apart, which depends on the load.

A wake-up of the event loop costs a switch of processes with cold processor caches, and a turn costs
a commit. Under load, the thread therefore sleeps after a turn until the next one is due. The next
poll then returns everything that arrived meanwhile: watch events, and responses on many
connections. Network drivers reduce interrupts under load in the same way (interrupt coalescing).
"""

from __future__ import annotations

import math
from typing import Final

from asched.model.quantity import NS_PER_S

MAX_INTERVAL_S: Final = 0.05
"""Longest interval between the starts of two turns, from 300 pods/s on. Twice as much saves 7 % of
the CPU of a burst and nothing at 500 pods/s, where a pod waits for 62 instead of 36 ms."""
_LOAD_PER_S: Final = 250.0
"""Changes per second from which on turns have an interval. A pod causes two or three changes."""
_INTERVAL_PER_RATE_S2: Final = 100e-6
"""Interval for each further change per second, so 200 pods/s have about 20 ms."""
LARGE_BATCH: Final = 150
"""Changes that make a turn efficient. Each pod of a turn needs a connection, and responses on all
of them wait while the thread sleeps."""
_DECAY_S: Final = 0.25
"""Time in which the weight of a change falls to 37 %. A short burst is no load."""


class ArrivalRate:
    """Changes per second, as an exponentially weighted average."""

    def __init__(self, now_ns: int) -> None:
        """``now_ns``: the monotonic clock."""
        self._updated_ns = now_ns
        self._received = 0
        self._weight = 0.0

    def update(self, received: int, now_ns: int) -> float:
        """The rate at ``now_ns``, after ``received`` changes in all."""
        passed_s = (now_ns - self._updated_ns) / NS_PER_S
        self._weight *= math.exp(-passed_s / _DECAY_S)
        self._weight += received - self._received
        self._updated_ns, self._received = now_ns, received
        return self._weight / _DECAY_S


def turn_interval_s(changes_per_s: float) -> float:
    """How far the starts of turns should be apart."""
    load_per_s = changes_per_s - _LOAD_PER_S
    if load_per_s <= 0:
        return 0.0
    return min(load_per_s * _INTERVAL_PER_RATE_S2, MAX_INTERVAL_S, LARGE_BATCH / changes_per_s)
