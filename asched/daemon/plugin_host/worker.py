"""A worker process: one plugin, and a copy of the cluster's nodes and the pods on them.

The daemon runs it as ``python -m asched.daemon.plugin_host.worker``. It reads requests from
standard input and writes replies to standard output. The plugin does not see these: what it prints
goes to standard error. The process exits as soon as the daemon closes the pipe, even while the
plugin runs.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, NoReturn, TypeVar

import numpy as np

from asched.daemon.plugin_host import evaluation as m
from asched.daemon.plugin_host.evaluation import AttemptKey, PluginEvaluator
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import (
    FailureReason,
    describe_raised,
    failure_reason,
    to_printable,
)
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import parse_arguments
from asched.model.meta import Object
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.pending_evaluations import pack_mask

ObjectT = TypeVar("ObjectT", bound=Object)


class NotMirroredError(LookupError):
    """A plugin in a worker read state that workers do not have."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a worker has only nodes and the pods on them, not {what}")


def _not_mirrored(what: str) -> Callable[..., NoReturn]:
    def method(*_: object) -> NoReturn:
        raise NotMirroredError(what)

    return method


class MirroredCluster(ClusterState):
    """The part of the cluster state that a worker has: nodes, the pods on them and their volumes.
    Everything else raises :class:`NotMirroredError`."""

    def objects(self, kind: type[ObjectT]) -> NoReturn:
        raise NotMirroredError(kind.__name__)

    def objects_version(self, *kinds: type[Object]) -> NoReturn:
        raise NotMirroredError(", ".join(kind.__name__ for kind in kinds))

    def object_changes(self, kind: type[Object], since: int) -> NoReturn:
        raise NotMirroredError(kind.__name__)

    group_members = _not_mirrored("pod groups")
    gang_pending_members = _not_mirrored("pod groups")
    groups_at_permit = property(_not_mirrored("waiting pods"))
    permit_changes = property(_not_mirrored("waiting pods"))


class MirroredHandle(ProfileHandle):
    """The handle of a plugin in a worker; raises :class:`NotMirroredError` for missing state."""

    waiting_pods = _not_mirrored("waiting pods")
    waiting_members = _not_mirrored("waiting pods")
    nominated_node = _not_mirrored("nominations")
    nominated_pods = _not_mirrored("nominations")
    evictions = property(_not_mirrored("evictions"))
    is_preempting = _not_mirrored("evictions")
    preemptors_without_evictions = property(_not_mirrored("evictions"))
    dry_run = _not_mirrored("the profile's filters")


class NodeMirror:
    """Applies the daemon's node table changes to the worker's node table."""

    def __init__(self, cluster: ClusterState) -> None:
        self._table = cluster.nodes
        self._names: dict[int, str] = {}
        """Node names by the daemon's rows."""
        self._row_of: dict[str, int] = {}
        """The daemon's rows by node name."""
        self._pods: dict[int, dict[str, PodInfo]] = {}

    def apply(self, change: m.NodeTableChange) -> None:
        table = self._table
        match change:
            case m.NodeUpserted(row=row, node=node):
                if self._names.get(row) != node.name:
                    self._remove(row)
                    # A node that was deleted and created again; its earlier row may follow.
                    self._remove(self._row_of.get(node.name, row))
                self._names[row], self._row_of[node.name] = node.name, row
                self._pods.setdefault(row, {})
                table.set_node(node)
            case m.NodeRemoved(row=row):
                self._remove(row)
            case m.PodUpserted(row=row, pod=pod):
                info = PodInfo(pod)
                known = self._pods[row].get(info.uid)
                if known is not None:
                    table.remove_pod(self._names[row], known)
                self._pods[row][info.uid] = info
                table.add_pod(self._names[row], info)
            case m.PodRemoved(row=row, uid=uid):
                table.remove_pod(self._names[row], self._pods[row].pop(uid))

    def _remove(self, row: int) -> None:
        if row not in self._names:
            return
        name = self._names.pop(row)
        del self._row_of[name]
        for pod in self._pods.pop(row).values():
            self._table.remove_pod(name, pod)
        self._table.remove_node(name)

    def rows(self, rows: tuple[int, ...]) -> list[int]:
        """The worker's rows for the daemon's rows."""
        found = [self._table.row_of(self._names[row]) for row in rows]
        assert None not in found, "a request names nodes that were not sent"
        return [row for row in found if row is not None]


class Worker:
    """Serves the requests of one daemon."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._cluster = MirroredCluster()
        self._mirror = NodeMirror(self._cluster)
        self._evaluator: PluginEvaluator | None = None
        self._name = ""

    def handle(self, message: m.ToWorker) -> bool:
        """Process a message. False if the worker must exit."""
        match message:
            case m.StartPlugin():
                return self._start(message)
            case m.EvaluationRequest():
                self._send(self._evaluate(message))
            case _:
                self._mirror.apply(message)
        return True

    def _send(self, message: m.FromWorker) -> None:
        self._output.write(m.framed(message))
        self._output.flush()

    def _start(self, start: m.StartPlugin) -> bool:
        self._name = start.name
        sys.path[:] = start.search_path
        try:
            plugin = _plugin_class(start)
            handle = MirroredHandle(self._cluster, start.scheduler_name)
            created = plugin(parse_arguments(plugin, start.arguments), handle)
        except BaseException as error:  # noqa: BLE001  third-party code
            what = describe_raised(start.name, "Worker", error)
            self._send(m.EvaluationFailed(0, what, "Worker", FailureReason.WORKER_ENDED))
            return False
        self._evaluator = PluginEvaluator(created)
        self._send(m.Ready())
        return True

    def _evaluate(self, request: m.EvaluationRequest) -> m.FromWorker:
        assert self._evaluator is not None, "the first message is StartPlugin"
        self._cluster.now_ns = request.now_ns
        pod = PodInfo(request.pod)
        key = AttemptKey(pod.uid, request.attempt)
        rows = np.array(self._mirror.rows(request.rows), np.intp)
        nodes = self._cluster.nodes.take(rows)
        try:
            if request.verb is ExtenderVerb.FILTER:
                rejections = self._evaluator.filter(key, pod, nodes)
                sent = tuple(
                    m.NodeRejections(to_printable(r.message), pack_mask(r.where))
                    for r in rejections
                )
                return m.FilterReply(request.number, sent)
            scores = self._evaluator.score(key, pod, nodes)
            return m.ScoreReply(request.number, tuple(scores.tolist()))
        except PluginFailure as failure:
            return m.EvaluationFailed(request.number, str(failure), failure.point, failure.reason)
        except BaseException as error:  # noqa: BLE001  the plugin's result is invalid
            point = "Filter" if request.verb is ExtenderVerb.FILTER else "Score"
            what = (
                f"plugin {self._name} at {point}: its answer cannot be used: {to_printable(error)}"
            )
            return m.EvaluationFailed(request.number, what, point, failure_reason(error))


def _plugin_class(start: m.StartPlugin) -> type[Plugin]:
    found: object = importlib.import_module(start.module)
    for part in start.qualname.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise TypeError(f"{start.module}:{start.qualname} is not a plugin")
    return found


def _read(stream: BinaryIO, into: queue.SimpleQueue[m.ToWorker]) -> None:
    """Read messages until the daemon closes the pipe, then exit at once."""
    while True:
        head = stream.read(m.LENGTH_BYTES)
        if len(head) < m.LENGTH_BYTES:
            os._exit(0)
        body = stream.read(int.from_bytes(head, "big"))
        into.put(m.decode_to_worker(body))


def main() -> None:
    """Serve until the daemon closes the pipe."""
    # Detach standard input and output, so that the plugin cannot read or write the protocol.
    output = os.fdopen(os.dup(1), "wb")
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    inbox: queue.SimpleQueue[m.ToWorker] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, inbox), daemon=True).start()
    worker = Worker(output)
    while worker.handle(inbox.get()):
        pass


if __name__ == "__main__":
    main()
