"""The garbage collector of a process that holds a cluster.

What a daemon keeps (pods, nodes, their columns) holds no cycles, and there is a lot of it: a collector
that walks through it all every few thousand allocations would take a tenth of the daemon's time and
find nothing.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""So many new objects that have not been freed are looked at together."""
YOUNG_ROUNDS = 20
MIDDLE_ROUNDS = 50


def look_seldom() -> None:
    """For the start of a daemon's process: look for garbage among what is new, and only rarely among
    all that is there."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, MIDDLE_ROUNDS)


def keep_what_is_here() -> None:
    """After the caches were filled: take what is there now out of the collector's sight."""
    gc.collect()
    gc.freeze()
