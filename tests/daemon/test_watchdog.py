"""What the watchdog takes note of while it looks at a stack."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

from asched.daemon.plugin_host.watchdog import visited


def test_classes_that_are_seen_on_a_stack_are_not_remembered() -> None:
    class Passerby:
        def frame(self) -> FrameType:
            return sys._getframe()

    frame = Passerby().frame()
    before = weakref.getweakrefcount(Passerby)
    assert visited(frame) is None
    assert weakref.getweakrefcount(Passerby) == before
