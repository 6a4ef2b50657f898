"""Threads that compute beside the event loop."""

from __future__ import annotations

import sys

from asched.daemon.interpreter import set_switch_interval


def test_who_computes_aside_hands_over_sooner_than_is_usual() -> None:
    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        set_switch_interval()
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before_s)
