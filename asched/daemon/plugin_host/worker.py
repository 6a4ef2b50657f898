"""A worker process: one plugin, and a mirror of the cluster's nodes and the pods on them.

Run by the daemon as ``python -m asched.daemon.plugin_host.worker``. It reads questions from its standard
input and writes answers to its standard output, which the plugin itself does not get to see: what that
prints goes to standard error. It ends when the daemon does, whatever the plugin is doing then.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
from typing import BinaryIO, TypeVar

import numpy as np

from asched.daemon.plugin_host import messages as m
from asched.daemon.plugin_host.respondent import AttemptKey, PluginEvaluator
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FailureReason, printable, reason_of
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import parse_arguments
from asched.model.meta import Object
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.inquiries import packed

ObjectT = TypeVar("ObjectT", bound=Object)


class NotMirroredError(LookupError):
    """A plugin in a worker asked for objects that workers do not have."""


class MirroredCluster(ClusterState):
    """The cluster as far as a worker knows it: nodes, and pods on nodes."""

    def objects(self, kind: type[ObjectT]) -> dict[str, ObjectT]:
        raise NotMirroredError(f"a worker knows nodes and pods on nodes, not {kind.__name__}")


class Mirror:
    """Keeps the worker's node table as the daemon says."""

    def __init__(self, cluster: ClusterState) -> None:
        self._table = cluster.nodes
        self._names: dict[int, str] = {}
        """By the daemon's rows."""
        self._pods: dict[int, dict[str, PodInfo]] = {}

    def enter(self, change: m.ToWorker) -> None:
        table = self._table
        match change:
            case m.NodeIs(row=row, node=node):
                if self._names.get(row) not in (None, node.name):
                    self._leave(row)
                self._names[row] = node.name
                self._pods.setdefault(row, {})
                table.set_node(node)
            case m.NodeWent(row=row):
                self._leave(row)
            case m.PodCame(row=row, pod=pod):
                info = PodInfo(pod)
                known = self._pods[row].get(info.uid)
                if known is not None:
                    table.remove_pod(self._names[row], known)
                self._pods[row][info.uid] = info
                table.add_pod(self._names[row], info)
            case m.PodWent(row=row, uid=uid):
                table.remove_pod(self._names[row], self._pods[row].pop(uid))

    def _leave(self, row: int) -> None:
        name = self._names.pop(row)
        for pod in self._pods.pop(row).values():
            self._table.remove_pod(name, pod)
        self._table.remove_node(name)

    def rows(self, rows: tuple[int, ...]) -> list[int]:
        """The table's rows of the daemon's rows."""
        found = [self._table.row_of(self._names[row]) for row in rows]
        assert None not in found, "the daemon asks about nodes that it told of"
        return [row for row in found if row is not None]


class Worker:
    """Answers one daemon."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._cluster = MirroredCluster()
        self._mirror = Mirror(self._cluster)
        self._respondent: PluginEvaluator | None = None
        self._name = ""

    def take(self, message: m.ToWorker) -> bool:
        """Do what a message asks. False where nothing more can be done."""
        match message:
            case m.Begin():
                return self._begin(message)
            case m.EvaluationRequest():
                self._say(self._answer(message))
            case _:
                self._mirror.enter(message)
        return True

    def _say(self, message: m.FromWorker) -> None:
        self._output.write(m.framed(message))
        self._output.flush()

    def _begin(self, begin: m.Begin) -> bool:
        self._name = begin.name
        sys.path[:] = begin.search_path
        try:
            plugin = _plugin_class(begin)
            handle = ProfileHandle(self._cluster, begin.scheduler_name)
            made = plugin(parse_arguments(plugin, begin.arguments), handle)
        except BaseException as error:  # noqa: BLE001  third-party code
            what = f"{type(error).__name__}: {printable(error)}"
            self._say(m.EvaluationFailed(0, what, "Worker", FailureReason.WORKER_ENDED))
            return False
        self._respondent = PluginEvaluator(made)
        self._say(m.Ready())
        return True

    def _answer(self, question: m.EvaluationRequest) -> m.FromWorker:
        assert self._respondent is not None, "a daemon begins with Begin"
        self._cluster.now_ns = question.now_ns
        pod = PodInfo(question.pod)
        key = AttemptKey(pod.uid, question.attempt)
        rows = np.array(self._mirror.rows(question.rows), np.intp)
        nodes = self._cluster.nodes.take(rows)
        try:
            if question.verb is ExtenderVerb.FILTER:
                refused = self._respondent.filter(key, pod, nodes)
                told = tuple(
                    m.NodeRejections(printable(r.message), packed(r.where)) for r in refused
                )
                return m.FilterReply(question.number, told)
            scores = self._respondent.score(key, pod, nodes)
            return m.ScoreReply(question.number, tuple(scores.tolist()))
        except PluginFailure as failure:
            return m.EvaluationFailed(question.number, str(failure), failure.point, failure.reason)
        except BaseException as error:  # noqa: BLE001  an answer that is none, found out late
            what = f"plugin {self._name}: its answer cannot be used: {printable(error)}"
            return m.EvaluationFailed(question.number, what, "Filter", reason_of(error))


def _plugin_class(begin: m.Begin) -> type[Plugin]:
    found: object = importlib.import_module(begin.module)
    for part in begin.qualname.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise TypeError(f"{begin.module}:{begin.qualname} is no plugin")
    return found


def _read(stream: BinaryIO, into: queue.SimpleQueue[m.ToWorker]) -> None:
    """Take messages until the daemon is gone; then so is the worker, even amid an answer."""
    while True:
        head = stream.read(m.LENGTH_BYTES)
        if len(head) < m.LENGTH_BYTES:
            os._exit(0)
        body = stream.read(int.from_bytes(head, "big"))
        into.put(m.decode_to_worker(body))


def main() -> None:
    """Serve until the daemon closes the pipe."""
    # A plugin that prints, or reads, must not be heard as the worker.
    output = os.fdopen(os.dup(1), "wb")
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    inbox: queue.SimpleQueue[m.ToWorker] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, inbox), daemon=True).start()
    worker = Worker(output)
    while worker.take(inbox.get()):
        pass


if __name__ == "__main__":
    main()
