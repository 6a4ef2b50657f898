"""Clients that evaluate one external plugin: in the daemon, or in a worker process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple

import anyio
import anyio.lowlevel
import numpy as np
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from asched.daemon.plugin_host import evaluation as m
from asched.daemon.plugin_host.evaluation import AttemptKey, FilterRejection, PluginEvaluator
from asched.framework.interface import Plugin
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FAILURES, FailureReason
from asched.kube.child_environment import worker_environment
from asched.model.node import Node
from asched.state.cluster import ClusterState
from asched.state.node_table import NodeTable
from asched.state.pending_evaluations import unpack_mask

START_TIMEOUT_S = 30.0
"""Limit from the start of a process until its plugin is created, imports included."""
WORKER_TIME_LIMIT_S = 5.0
"""Default limit of one call of a plugin in a worker."""
_EXIT_WAIT_S = 1.0
"""How long a process that closed its pipes may take to exit."""
_QUEUE_TIMEOUT_S = 60.0
_MESSAGES_AT_ONCE = 500
_MAX_BACKOFF_S = 30.0


class WorkerLostError(Exception):
    """The process ended, could not be started, or was killed because it took too long."""


class PluginEvaluationError(Exception):
    """The plugin was not evaluated. The text names the plugin and the reason."""


class WorkerProcess:
    """One worker process, from its start to its end. Raises :class:`WorkerLostError` once it
    ended."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._source: BufferedByteReceiveStream | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, plugin: m.StartPlugin) -> None:
        command = [sys.executable, "-m", "asched.daemon.plugin_host.worker"]
        environment = worker_environment()
        try:
            self._process = await anyio.open_process(command, stderr=None, env=environment)
        except OSError as error:
            raise WorkerLostError(f"its worker cannot be started: {error}") from None
        assert self._process.stdout is not None
        self._source = BufferedByteReceiveStream(self._process.stdout)
        with anyio.move_on_after(START_TIMEOUT_S):
            await self.send([plugin])
            reply = await self.receive()
            if isinstance(reply, m.EvaluationFailed):
                await self.kill()
                raise WorkerLostError(f"it cannot be created in its worker: {reply.message}")
            return
        await self.kill()
        raise WorkerLostError(f"its worker did not start within {START_TIMEOUT_S:g} s")

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
            await self.kill()
            raise WorkerLostError(f"its worker sent an invalid message: {error}") from None
        return reply

    async def _lost(self) -> WorkerLostError:
        assert self._process is not None
        # Its pipes are closed: wait for the exit code.
        with anyio.move_on_after(_EXIT_WAIT_S):
            await self._process.wait()
        await self.kill()
        return WorkerLostError(f"its worker ended with code {self._process.returncode}")

    async def kill(self) -> None:
        if self._process is None:
            return
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            await self._process.aclose()


class _SentRow:
    """What a worker knows of one row."""

    __slots__ = ("node", "pods")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pods: dict[str, PodInfo] = {}


class NodeTableSync:
    """Keeps one worker's copy of the node table current. It visits only rows that changed."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._sent: dict[int, _SentRow] = {}
        self._cursor: int | None = None

    @property
    def behind(self) -> bool:
        """Whether the table changed since :meth:`changes` was called."""
        return self._cursor != self._table.cursor

    def changes(self) -> Iterator[m.NodeTableChange]:
        """The changes since the last call. The table may change during the iteration: call it again
        while :attr:`behind`."""
        table, cursor = self._table, self._cursor
        changed = None if cursor is None else table.changed_since(cursor)
        self._cursor = table.cursor
        for row in range(table.size) if changed is None else changed:
            yield from self._row_changes(row)

    def _row_changes(self, row: int) -> Iterator[m.NodeTableChange]:
        table, sent = self._table, self._sent.get(row)
        if not table.alive[row]:
            if sent is not None:
                del self._sent[row]
                yield m.NodeRemoved(row)
            return
        node = table.node(row)
        if sent is None or sent.node.name != node.name:
            sent = self._sent[row] = _SentRow(node)
            yield m.NodeUpserted(row, node)
        elif sent.node is not node:
            sent.node = node
            yield m.NodeUpserted(row, node)
        pods = {pod.uid: pod for pod in table.pods(row)}
        for uid in sent.pods.keys() - pods.keys():
            del sent.pods[uid]
            yield m.PodRemoved(row, uid)
        for uid, pod in pods.items():
            if sent.pods.get(uid) is not pod:
                sent.pods[uid] = pod
                yield m.PodUpserted(row, pod.pod)


class PendingCall(NamedTuple):
    """An evaluation that waits for its plugin."""

    verb: ExtenderVerb
    pod: PodInfo
    attempt: int
    rows: Callable[[], RowArray | None]
    """The present rows of the nodes; None once the result is no longer needed."""


Evaluation = list[FilterRejection] | Int64Column
"""Rejections, or a score for each row."""


class InProcessClient:
    """A plugin that is impure but quick."""

    def __init__(self, plugin: Plugin, cluster: ClusterState) -> None:
        self._evaluator = PluginEvaluator(plugin)
        self._cluster = cluster

    async def evaluate(self, call: PendingCall) -> Evaluation | None:
        """None once the result is no longer needed. Raises :class:`PluginEvaluationError` and
        :class:`~asched.framework.runtime.plugin_calls.PluginFailure`."""
        await anyio.lowlevel.checkpoint()
        rows = call.rows()
        if rows is None:
            return None
        nodes = self._cluster.nodes.take(rows)
        key = AttemptKey(call.pod.uid, call.attempt)
        if call.verb is ExtenderVerb.FILTER:
            return self._evaluator.filter(key, call.pod, nodes)
        return self._evaluator.score(key, call.pod, nodes)

    async def close(self) -> None:
        pass


class WorkerClient:
    """A plugin in a worker process, which starts with the first call. A lost process is restarted:
    once immediately, then with exponential backoff."""

    def __init__(
        self, plugin: m.StartPlugin, cluster: ClusterState, limit_s: Callable[[], float | None]
    ) -> None:
        self._plugin = plugin
        self._cluster = cluster
        self._limit_s = limit_s
        self._process = WorkerProcess()
        self._sync = NodeTableSync(cluster.nodes)
        self._lock = anyio.Lock()
        self._number = 0
        self._losses = 0
        """Consecutive ones."""
        self._restart_at_s = 0.0

    async def evaluate(self, call: PendingCall) -> Evaluation | None:
        """As :meth:`InProcessClient.evaluate`."""
        async with self._locked():
            if call.rows() is None:
                return None
            try:
                await self._prepare()
                result = await self._send(call)
            except WorkerLostError as error:
                self._lost(FailureReason.WORKER_ENDED)
                raise self._error(str(error)) from None
            except anyio.get_cancelled_exc_class():
                # The reply to the cancelled request may still arrive on the pipe.
                await self._process.kill()
                raise
            self._losses = 0
            return result

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """One call at a time: the plugin is synchronous."""
        with anyio.move_on_after(_QUEUE_TIMEOUT_S) as waiting:
            await self._lock.acquire()
        if waiting.cancelled_caught:
            raise self._error(f"its worker is busy with other pods for {_QUEUE_TIMEOUT_S:g} s")
        try:
            yield
        finally:
            self._lock.release()

    async def _prepare(self) -> None:
        """Start the worker if needed and synchronize its nodes. Raises WorkerLostError."""
        if not self._process.alive:
            if anyio.current_time() < self._restart_at_s:
                raise self._error("its worker was lost, and is not started again yet")
            self._sync = NodeTableSync(self._cluster.nodes)
            await self._process.start(self._plugin)
        while self._sync.behind:
            changes = self._sync.changes()
            while some := [*islice(changes, _MESSAGES_AT_ONCE)]:
                await self._process.send(some)

    async def _send(self, call: PendingCall) -> Evaluation | None:
        rows = call.rows()
        if rows is None:
            return None
        self._number += 1
        request = m.EvaluationRequest(
            number=self._number,
            verb=call.verb,
            attempt=call.attempt,
            pod=call.pod.pod,
            rows=tuple(rows.tolist()),
            now_ns=self._cluster.now_ns,
        )
        limit_s = self._limit_s() or WORKER_TIME_LIMIT_S
        with anyio.move_on_after(limit_s):
            await self._process.send([request])
            return self._result(await self._process.receive(), len(rows))
        await self._process.kill()
        self._lost(FailureReason.TIMEOUT)
        raise self._error(f"no answer within {limit_s:g} s; its worker was ended")

    def _result(self, reply: m.FromWorker, size: int) -> Evaluation:
        if not isinstance(reply, m.Ready) and reply.number == self._number:
            match reply:
                case m.FilterReply(rejections=rejections):
                    return [
                        FilterRejection(r.message, unpack_mask(r.places, size)) for r in rejections
                    ]
                case m.ScoreReply(scores=scores) if len(scores) == size:
                    return np.array(scores, np.int64)
                case m.EvaluationFailed():
                    FAILURES.note(self._plugin.name, reply.point, reply.reason)
                    raise PluginEvaluationError(reply.message)
        raise WorkerLostError("its worker replied to another request")

    def _lost(self, reason: FailureReason) -> None:
        FAILURES.note(self._plugin.name, "Worker", reason)
        backoff_s = min(2.0**self._losses - 1, _MAX_BACKOFF_S)
        self._losses = min(self._losses + 1, 16)
        self._restart_at_s = anyio.current_time() + backoff_s

    def _error(self, why: str) -> PluginEvaluationError:
        return PluginEvaluationError(f"plugin {self._plugin.name}: {why}")

    async def close(self) -> None:
        await self._process.kill()


PluginClient = InProcessClient | WorkerClient
"""Evaluates one plugin of one profile."""
