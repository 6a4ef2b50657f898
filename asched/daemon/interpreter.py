"""Settings of the Python interpreter: garbage collection and thread switching.

asched keeps a large heap (pods, nodes, columns) that contains almost no cycles. With Python's
default thresholds the collector traverses that heap every few thousand allocations and finds
nothing. That costs a daemon a tenth of its time, and a command that folds a whole journal a
quarter.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005
_DAEMON_THRESHOLDS: Final = (20_000, 20, 50)
_COMMAND_THRESHOLDS: Final = (100_000, 50, 100)


def tune_gc() -> None:
    """Make collections rare. For the start of a daemon."""
    gc.set_threshold(*_DAEMON_THRESHOLDS)


def freeze_gc() -> None:
    """Exclude all present objects from later collections. For a daemon with filled caches."""
    gc.collect()
    gc.freeze()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Make collections very rare within the block. For commands that read a whole journal."""
    before = gc.get_threshold()
    gc.set_threshold(*_COMMAND_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def set_switch_interval() -> None:
    """Let a computing thread yield the interpreter after half a millisecond instead of 5 ms.

    The event loop releases the interpreter at each system call. With a thread that computes, such
    as one that encodes a checkpoint, every request to the API server would wait for a whole
    interval.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
