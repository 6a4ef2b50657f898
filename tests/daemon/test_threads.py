"""Threads that compute beside the event loop."""

from __future__ import annotations

import sys

from asched.daemon.engine.runtime import give_way_soon


def test_who_computes_aside_hands_over_sooner_than_is_usual() -> None:
    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        give_way_soon()
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before_s)
