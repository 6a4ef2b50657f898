"""A note of the pod in hand, which survives the death of the process.

The journal has an attempt only after its turn. So each attempt is noted in a memory-mapped file
first: a few bytes and no system call. The kernel keeps them whatever ends the process. A pod that
was in hand at two deaths is quarantined (:class:`~asched.state.records.PodQuarantined`).
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Self

import msgspec

from asched.framework.pod_info import PodInfo
from asched.state.records import PodQuarantined

_SIZE_BYTES = 8192
_HALF = _SIZE_BYTES // 2
_IDLE, _IN_HAND = 0, 1


class _Suspect(msgspec.Struct, frozen=True):
    """The pod of an attempt that did not end."""

    key: str
    uid: str


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Suspect)


class AttemptMark:
    """The file of one process. Its first half is the pod in hand, its second half the pod of the
    last death with one: each a state and the pod as JSON."""

    def __init__(self, pages: mmap.mmap) -> None:
        self._pages = pages

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the file. Raises OSError."""
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(number, _SIZE_BYTES)
            return cls(mmap.mmap(number, _SIZE_BYTES))
        finally:
            os.close(number)

    def begin(self, pod: PodInfo) -> None:
        """The attempt for a pod begins."""
        self._write(0, _Suspect(pod.key, pod.uid))

    def end(self) -> None:
        """The attempt ended."""
        self._pages[0] = _IDLE

    def after_death(self) -> PodQuarantined | None:
        """To be called once at a start: the pod that was in hand at the last two deaths."""
        died_with = self._read(0)
        if died_with is None:
            return None
        self._pages[0] = _IDLE
        if self._read(_HALF) != died_with:
            self._write(_HALF, died_with)
            return None
        self._pages[_HALF] = _IDLE
        return PodQuarantined(died_with.key, died_with.uid)

    def close(self) -> None:
        self._pages.close()

    def _write(self, begin: int, suspect: _Suspect) -> None:
        text = _encode(suspect)
        pages = self._pages
        if len(text) > _HALF - 3:
            return  # names are limited to far less
        # The state comes last, so that it is never that of another text.
        pages[begin] = _IDLE
        pages[begin + 1 : begin + 3 + len(text)] = len(text).to_bytes(2, "big") + text
        pages[begin] = _IN_HAND

    def _read(self, begin: int) -> _Suspect | None:
        pages = self._pages
        if pages[begin] != _IN_HAND:
            return None
        length = int.from_bytes(pages[begin + 1 : begin + 3], "big")
        try:
            return _decoder.decode(pages[begin + 3 : begin + 3 + length])
        except msgspec.DecodeError:
            return None
