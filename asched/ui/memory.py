"""Settings of the C library's allocator for processes that stay small between large answers.

By default glibc keeps a heap for each thread, and learns from freed buffers to take even large ones
from a heap, which then cannot shrink below the buffer that was allocated last.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 128 * 1024
"""Buffers from this size on are returned to the system when they are freed."""


def limit_heap() -> None:
    """Use one heap for all threads, and return large buffers. Does nothing without glibc."""
    set_option = getattr(_library(), "mallopt", None)
    if set_option is None:
        return
    set_option(_ARENA_MAX, 1)
    # Setting a threshold ends its adaptation.
    set_option(_MMAP_THRESHOLD, _LARGE_BYTES)
    set_option(_TRIM_THRESHOLD, _LARGE_BYTES)


def return_free_memory() -> None:
    """Return what is free to the system. Does nothing without glibc."""
    trim = getattr(_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:
        return None
