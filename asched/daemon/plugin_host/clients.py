"""How one plugin is asked outside decisions: in this process, or in a worker.

A worker process, seen from the daemon.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from typing import NamedTuple, Protocol

import anyio
import anyio.lowlevel
import numpy as np
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from asched.daemon.plugin_host import messages as m
from asched.daemon.plugin_host.messages import Mirroring
from asched.daemon.plugin_host.respondent import AttemptKey, PluginEvaluator, Rejection
from asched.framework.interface import Plugin
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FAILURES, FailureReason
from asched.state.cluster import ClusterState
from asched.state.inquiries import unpacked

START_TIME_LIMIT_S = 30.0
"""From the start of the process until its plugin is made: that may have much to import."""
_LAST_WORDS_S = 1.0
"""How long a process that closed its pipes may take to end by itself."""
_PRIVATE = ("ASCHED_", "KUBECONFIG", "KUBERNETES_", "PG", "NOTIFY_SOCKET")
"""Beginnings of the names of variables that are no concern of a plugin."""


class WorkerLostError(Exception):
    """The process ended, could not be started, or was ended because it took too long."""


class WorkerProcess:
    """One process from its start to its end. Raises :class:`WorkerLostError` once it is over."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._process: Process | None = None
        self._source: BufferedByteReceiveStream | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, begin: m.Begin) -> None:
        command = [sys.executable, "-m", "asched.daemon.plugin_host.worker"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_PRIVATE)}
        try:
            self._process = await anyio.open_process(command, stderr=None, env=environment)
        except OSError as error:
            raise WorkerLostError(f"its worker cannot be started: {error}") from None
        assert self._process.stdout is not None
        self._source = BufferedByteReceiveStream(self._process.stdout)
        with anyio.move_on_after(START_TIME_LIMIT_S):
            await self.send([begin])
            reply = await self.receive()
            if isinstance(reply, m.EvaluationFailed):
                await self.end()
                raise WorkerLostError(f"it cannot be made in its worker: {reply.message}")
            return
        await self.end()
        raise WorkerLostError(f"its worker did not start within {START_TIME_LIMIT_S:g} s")

    async def send(self, messages: Iterable[m.ToWorker]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(b"".join(map(m.framed, messages)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise await self._lost() from None

    async def receive(self) -> m.FromWorker:
        assert self._source is not None
        try:
            head = await self._source.receive_exactly(m.LENGTH_BYTES)
            body = await self._source.receive_exactly(int.from_bytes(head, "big"))
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise await self._lost() from None
        try:
            reply: m.FromWorker = m.decode_from_worker(body)
        except ValueError as error:
            await self.end()
            raise WorkerLostError(f"its worker talks nonsense: {error}") from None
        return reply

    async def _lost(self) -> WorkerLostError:
        assert self._process is not None
        # Its pipes are closed, so it has ended or is about to: how, is worth knowing.
        with anyio.move_on_after(_LAST_WORDS_S):
            await self._process.wait()
        await self.end()
        return WorkerLostError(f"its worker ended with code {self._process.returncode}")

    async def end(self) -> None:
        """End it at once, whatever it does."""
        if self._process is None:
            return
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()


WORKER_TIME_LIMIT_S = 5.0
"""How long a plugin in a worker may think about one question, unless the settings say otherwise."""
_PATIENCE_S = 60.0
"""How long a question waits for its turn."""
_MESSAGES_AT_ONCE = 500
_LONGEST_PAUSE_S = 30.0


class WorkerTimeoutError(Exception):
    """The plugin did not answer. The text says which, and why."""


class PendingCall(NamedTuple):
    """A question as it is put: about these rows, as long as they are still there."""

    verb: ExtenderVerb
    pod: PodInfo
    attempt: int
    rows: Callable[[], RowArray | None]
    """The rows as they now are; None where nobody waits for the answer any more."""


Answer = list[Rejection] | Int64Column
"""What is refused, or a score for each row."""


class PluginClient(Protocol):
    """Asks one plugin of one profile."""

    async def answer(self, asked: PendingCall) -> Answer | None:
        """None where nobody waits for it any more. Raises :class:`WorkerTimeoutError`, and
        :class:`~asched.framework.runtime.plugin_calls.PluginFailure`."""

    async def close(self) -> None: ...


class InProcess:
    """A plugin that is not pure, but quick."""

    def __init__(self, plugin: Plugin, cluster: ClusterState) -> None:
        self._respondent = PluginEvaluator(plugin)
        self._cluster = cluster

    async def answer(self, asked: PendingCall) -> Answer | None:
        await anyio.lowlevel.checkpoint()
        rows = asked.rows()
        if rows is None:
            return None
        nodes = self._cluster.nodes.take(rows)
        key = AttemptKey(asked.pod.uid, asked.attempt)
        ask = (
            self._respondent.filter if asked.verb is ExtenderVerb.FILTER else self._respondent.score
        )
        return ask(key, asked.pod, nodes)

    async def close(self) -> None:
        pass


class InWorker:
    """A plugin in a process of its own, which is started when it is first asked, and again when it
    was lost: at once, then after pauses that grow until it answers again."""

    def __init__(
        self, begin: m.Begin, cluster: ClusterState, limit_s: Callable[[], float | None]
    ) -> None:
        self._begin = begin
        self._cluster = cluster
        self._limit_s = limit_s
        self._process = WorkerProcess()
        self._mirroring = Mirroring(cluster.nodes)
        self._turn = anyio.Lock()
        self._number = 0
        self._lost_in_a_row = 0
        self._not_before_s = 0.0

    async def answer(self, asked: PendingCall) -> Answer | None:
        async with self._in_turn():
            if asked.rows() is None:
                return None
            try:
                await self._be_ready()
                reply = await self._put(asked)
            except WorkerLostError as error:
                self._lost(FailureReason.WORKER_ENDED)
                raise self._no_answer(str(error)) from None
            except anyio.get_cancelled_exc_class():
                # Cancelled amid an exchange: what comes next on the pipe would be no answer.
                await self._process.end()
                raise
            self._lost_in_a_row = 0
            return reply

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """One question at a time: the plugin is synchronous."""
        with anyio.move_on_after(_PATIENCE_S) as patience:
            await self._turn.acquire()
        if patience.cancelled_caught:
            raise self._no_answer(f"its worker is busy with other pods for {_PATIENCE_S:g} s")
        try:
            yield
        finally:
            self._turn.release()

    async def _be_ready(self) -> None:
        """Have a worker that knows all nodes as they now are. Raises WorkerLostError."""
        if not self._process.alive:
            if anyio.current_time() < self._not_before_s:
                raise self._no_answer("its worker was lost, and is not started again yet")
            self._mirroring = Mirroring(self._cluster.nodes)
            await self._process.start(self._begin)
        while self._mirroring.behind:
            news = self._mirroring.news()
            while some := [*islice(news, _MESSAGES_AT_ONCE)]:
                await self._process.send(some)

    async def _put(self, asked: PendingCall) -> Answer | None:
        rows = asked.rows()
        if rows is None:
            return None
        self._number += 1
        question = m.EvaluationRequest(
            self._number,
            asked.verb,
            asked.attempt,
            asked.pod.pod,
            tuple(rows.tolist()),
            self._cluster.now_ns,
        )
        limit_s = self._limit_s() or WORKER_TIME_LIMIT_S
        with anyio.move_on_after(limit_s) as limit:
            await self._process.send([question])
            return self._understood(await self._process.receive(), len(rows))
        assert limit.cancelled_caught
        await self._process.end()
        self._lost(FailureReason.TIMEOUT)
        raise self._no_answer(f"no answer within {limit_s:g} s; its worker was ended")

    def _understood(self, reply: m.FromWorker, size: int) -> Answer:
        match reply:
            case m.FilterReply(number=number, refused=refused) if number == self._number:
                return [Rejection(r.message, unpacked(r.places, size)) for r in refused]
            case m.ScoreReply(number=number, scores=scores) if (number, len(scores)) == (
                self._number,
                size,
            ):
                return np.array(scores, np.int64)
            case m.EvaluationFailed(number=number) if number == self._number:
                FAILURES.note(self._begin.name, reply.point, reply.reason)
                raise WorkerTimeoutError(reply.message)
        raise WorkerLostError("its worker answered another question than it was asked")

    def _lost(self, reason: FailureReason) -> None:
        FAILURES.note(self._begin.name, "Worker", reason)
        pause_s = min(2.0**self._lost_in_a_row - 1, _LONGEST_PAUSE_S)
        self._lost_in_a_row = min(self._lost_in_a_row + 1, 16)
        self._not_before_s = anyio.current_time() + pause_s

    def _no_answer(self, why: str) -> WorkerTimeoutError:
        return WorkerTimeoutError(f"plugin {self._begin.name}: {why}")

    async def close(self) -> None:
        await self._process.end()
