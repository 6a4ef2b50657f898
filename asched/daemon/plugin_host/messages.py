"""What a daemon and a worker process say to each other: msgpack, each message after its length.

Nothing that either side sends can make the other run code.

What a worker has to be told of the cluster's nodes, so that it knows them as they now are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, dataclass_transform

import msgspec

from asched.daemon.plugin_host import messages as m
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FailureReason
from asched.model.node import Node
from asched.model.pod import Pod
from asched.state.node_table import NodeTable

LENGTH_BYTES: Final = 4


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Begin(Message):
    """To a worker, first of all: the plugin that it is to be."""

    name: str
    module: str
    qualname: str
    arguments: dict[str, Any]
    scheduler_name: str
    search_path: tuple[str, ...]


class NodeIs(Message):
    """To a worker: the row holds this node, and no pods yet."""

    row: int
    node: Node


class NodeWent(Message):
    """To a worker: the row is empty."""

    row: int


class PodCame(Message):
    """To a worker: the pod is on the row's node; one of its uid that was there is replaced."""

    row: int
    pod: Pod


class PodWent(Message):
    """To a worker: the pod is not on the row's node any more."""

    row: int
    uid: str


class EvaluationRequest(Message):
    """To a worker: about the nodes of ``rows``, in that order."""

    number: int
    verb: ExtenderVerb
    attempt: int
    pod: Pod
    rows: tuple[int, ...]
    now_ns: int


class Ready(Message):
    """From a worker: the plugin is there."""


class NodeRejections(msgspec.Struct, frozen=True, array_like=True):
    """Nodes that were refused with the same words."""

    message: str
    places: bytes
    """Which of the question's nodes, a bit each."""


class FilterReply(Message):
    """From a worker: the nodes that are refused."""

    number: int
    refused: tuple[NodeRejections, ...]


class ScoreReply(Message):
    """From a worker: a score for each of the question's nodes."""

    number: int
    scores: tuple[int, ...]


class EvaluationFailed(Message):
    """From a worker: the plugin failed; with number 0, it could not be had at all."""

    number: int
    message: str
    point: str
    reason: FailureReason


ToWorker = Begin | NodeIs | NodeWent | PodCame | PodWent | EvaluationRequest
FromWorker = Ready | FilterReply | ScoreReply | EvaluationFailed

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """The message with its length before it."""
    body = encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class _Told:
    """What a worker was told of one row."""

    __slots__ = ("node", "pods")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pods: dict[str, PodInfo] = {}


class Mirroring:
    """Follows the node table for one worker. It looks only at rows that changed since it last did."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._told: dict[int, _Told] = {}
        self._cursor: int | None = None

    def news(self) -> Iterator[m.ToWorker]:
        """What changed since this was last gone through to its end. The table may change meanwhile:
        go through it again until there is none."""
        table, cursor = self._table, self._cursor
        changed = None if cursor is None else table.changed_since(cursor)
        self._cursor = table.cursor
        for row in range(table.size) if changed is None else changed:
            yield from self._of_row(row)

    @property
    def behind(self) -> bool:
        """Whether the table has changed since :meth:`news` was begun."""
        return self._cursor != self._table.cursor

    def _of_row(self, row: int) -> Iterator[m.ToWorker]:
        table, told = self._table, self._told.get(row)
        if not table.alive[row]:
            if told is not None:
                del self._told[row]
                yield m.NodeWent(row)
            return
        node = table.node(row)
        if told is None or told.node.name != node.name:
            told = self._told[row] = _Told(node)
            yield m.NodeIs(row, node)
        elif told.node is not node:
            told.node = node
            yield m.NodeIs(row, node)
        here = {pod.uid: pod for pod in table.pods(row)}
        for uid in told.pods.keys() - here.keys():
            del told.pods[uid]
            yield m.PodWent(row, uid)
        for uid, pod in here.items():
            if told.pods.get(uid) is not pod:
                told.pods[uid] = pod
                yield m.PodCame(row, pod.pod)
