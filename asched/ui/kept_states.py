"""Processes that keep the state of a checkpoint of the index.

Restoring a state takes longer than answering a question on it. So the state stays in a process
that forks a child for each question about a record soon after the checkpoint: the pages of a pod,
or of pods that were decided at about the same time. Children share the state's memory until they
change it.
"""

from __future__ import annotations

import gc
import os
import platform
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import structlog

from asched.framework.runtime.profile import PluginLoader, ProfileError
from asched.journal.checkpoints import RestoredFold
from asched.state.checkpoint import CheckpointError, restore
from asched.ui.memory import return_free_memory
from asched.ui.state_file import EVERY_RECORDS, newest_state, state_seq

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_STATES: Final = 2
"""In memory, with those of calls that restore one themselves."""
_MAX_CALL_BYTES: Final = 64 * 1024
_HAS_SEQUENCED_SOCKETS: Final = platform.system() == "Linux"
"""Others restore a state for each question."""

AnswerCall = Callable[[int, bytes, RestoredFold | None], NoReturn]
"""Writes the answer of a call to a pipe and ends the process."""


class KeptState:
    """A process that keeps a state, as the process that started it sees it."""

    def __init__(self, seq: int, pid: int, connection: socket.socket) -> None:
        self.seq = seq
        self.pid = pid
        self.running: set[int] = set()
        """The pipes of its calls."""
        self._connection = connection

    def reaches(self, seq: int) -> bool:
        """Whether few records lie between the state and a record."""
        return 0 <= seq - self.seq <= EVERY_RECORDS

    def start(self, call: bytes, reading: int, writing: int) -> bool:
        """Answer a call to a pipe. False if the process ended."""
        try:
            socket.send_fds(self._connection, [call], [writing])
        except OSError:
            return False
        self.running.add(reading)
        return True

    def close(self) -> None:
        """The process ends after its calls."""
        self._connection.close()


class KeptStates:
    """The processes with the states that were used last."""

    def __init__(self, load: PluginLoader, answer: AnswerCall) -> None:
        self._load = load
        self._answer = answer
        self._kept: list[KeptState] = []
        """The one that was used last is the last one."""
        self._ended: list[int] = []

    def __len__(self) -> int:
        return len(self._kept)

    def start(self, call: bytes, near: int, states: Path | None, pipe: tuple[int, int]) -> bool:
        """Answer a call that begins with the state after record ``near``, to a pipe. False if no
        checkpoint of the index is near."""
        self._reap()
        if not near or states is None or len(call) > _MAX_CALL_BYTES:
            return False
        if not _HAS_SEQUENCED_SOCKETS:
            return False
        kept = next((one for one in self._kept if one.reaches(near)), None)
        if kept is None:
            seq = state_seq(states, near)
            if not seq or near - seq > EVERY_RECORDS:
                return False
            kept = self._keep(seq, states, pipe)
        else:
            self._kept.remove(kept)
        if not kept.start(call, *pipe):
            self._drop(kept)
            return False
        self._kept.append(kept)
        return True

    def ended(self, reading: int) -> None:
        """The pipe of a call was closed."""
        for kept in self._kept:
            kept.running.discard(reading)

    def make_room(self, others: int = 0) -> None:
        """Before another state: end the idle processes that were not used for longest."""
        idle = [one for one in self._kept if not one.running]
        for kept in idle[: max(0, len(self._kept) + others + 1 - MAX_STATES)]:
            self._kept.remove(kept)
            self._drop(kept)

    def close(self) -> None:
        """End all processes."""
        while self._kept:
            self._drop(self._kept.pop())
        self._reap()

    def _drop(self, kept: KeptState) -> None:
        kept.close()
        self._ended.append(kept.pid)

    def _reap(self) -> None:
        self._ended = [pid for pid in self._ended if os.waitpid(pid, os.WNOHANG) == (0, 0)]

    def _keep(self, seq: int, states: Path, pipe: tuple[int, int]) -> KeptState:
        self.make_room()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            ours.close()
            for end in pipe:
                os.close(end)  # the reader waits until the last process closes it
            for other in self._kept:
                other.close()
            _serve(theirs, _restored(states, seq, self._load), self._answer)
        theirs.close()
        return KeptState(seq, pid, ours)


def _restored(states: Path, seq: int, load: PluginLoader) -> RestoredFold | None:
    """None if the state cannot be used; calls then find another one, or the reason."""
    found = newest_state(states, seq)
    if found is None:
        return None
    try:
        return RestoredFold(restore(found.blob, load), found.seq)
    except (CheckpointError, ProfileError) as error:
        log.warning("state not used", record=found.seq, reason=str(error))
        return None


def _serve(connection: socket.socket, kept: RestoredFold | None, answer: AnswerCall) -> NoReturn:
    """Fork a child for each call until the other end is closed."""
    gc.disable()
    gc.freeze()
    return_free_memory()
    with suppress(OSError):
        while True:
            call, pipes, _, _ = socket.recv_fds(connection, _MAX_CALL_BYTES, 1)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
            if not call:
                break
            if not os.fork():
                connection.close()
                answer(pipes[0], call, kept)
            os.close(pipes[0])
    with suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)
