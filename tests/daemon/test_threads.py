"""The interpreter's switch interval between threads."""

from __future__ import annotations

import sys

from asched.daemon.process import set_switch_interval


def test_switch_interval_is_shorter_than_default() -> None:
    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        set_switch_interval()
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(before_s)
