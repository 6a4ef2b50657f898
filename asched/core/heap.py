"""Garbage collection in processes that fold journals.

asched keeps a large heap (pods, nodes, columns) that contains almost no cycles. With Python's
default thresholds the collector traverses it every few thousand allocations. That costs a daemon a
tenth of its time, and a process that folds a whole journal a quarter.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_DAEMON_THRESHOLDS: Final = (20_000, 20, 50)
_START_THRESHOLDS: Final = (20_000, 1_000_000, 1_000_000)
"""The youngest objects only: caches only grow, and freezing ends the start."""
_COMMAND_THRESHOLDS: Final = (500_000, 50, 100)
"""More objects than all imports create."""


def tune_gc() -> None:
    """Make collections rare, and exclude what imports created. For the start of a daemon."""
    gc.freeze()
    gc.set_threshold(*_START_THRESHOLDS)


def freeze_gc() -> None:
    """Exclude all present objects from later collections. For a daemon with filled caches.

    Only young objects are collected before: a million pods would stop the event loop for a second.
    """
    gc.collect(0)
    gc.freeze()
    gc.set_threshold(*_DAEMON_THRESHOLDS)


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Make collections very rare within the block. For commands and workers: imports, folds."""
    before = gc.get_threshold()
    gc.set_threshold(*_COMMAND_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
