"""How the daemon's threads share the interpreter.

The event loop gives the interpreter away at each system call, and gets it back from a thread that
computes (say the last checkpoint of a stop, or a plugin that was given one) only when that thread's interval is
over. At the 5 ms which are usual every message to the API server would wait that long.
"""

from __future__ import annotations

import sys

SWITCH_INTERVAL_S = 0.0005


def give_way_soon() -> None:
    """For the start of a daemon's process: who computes aside hands over after half a millisecond."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
