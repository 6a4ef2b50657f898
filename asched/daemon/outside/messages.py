"""What a daemon and a worker process say to each other: msgpack, each message after its length.

Nothing that either side sends can make the other run code.
"""

from __future__ import annotations

from typing import Any, Final, dataclass_transform

import msgspec

from asched.framework.extenders import ExtenderVerb
from asched.framework.failures import FailureReason
from asched.model.node import Node
from asched.model.pod import Pod

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


class Question(Message):
    """To a worker: about the nodes of ``rows``, in that order."""

    number: int
    verb: ExtenderVerb
    attempt: int
    pod: Pod
    rows: tuple[int, ...]
    now_ns: int


class Ready(Message):
    """From a worker: the plugin is there."""


class RefusedNodes(msgspec.Struct, frozen=True, array_like=True):
    """Nodes that were refused with the same words."""

    message: str
    places: bytes
    """Which of the question's nodes, a bit each."""


class FilterReply(Message):
    """From a worker: the nodes that are refused."""

    number: int
    refused: tuple[RefusedNodes, ...]


class ScoreReply(Message):
    """From a worker: a score for each of the question's nodes."""

    number: int
    scores: tuple[int, ...]


class Failed(Message):
    """From a worker: the plugin failed; with number 0, it could not be had at all."""

    number: int
    message: str
    point: str
    reason: FailureReason


ToWorker = Begin | NodeIs | NodeWent | PodCame | PodWent | Question
FromWorker = Ready | FilterReply | ScoreReply | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """The message with its length before it."""
    body = encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
