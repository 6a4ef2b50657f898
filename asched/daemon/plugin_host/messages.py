"""The protocol between the daemon and a worker: msgpack messages, each preceded by its length.

Neither side can make the other execute code.
"""

from __future__ import annotations

from typing import Any, Final, dataclass_transform

import msgspec

from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FailureReason
from asched.model.node import Node
from asched.model.pod import Pod

LENGTH_BYTES: Final = 4


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


# -- to a worker
# ------------------------------------------------------------------------------------


class StartPlugin(Message):
    """First message: create this plugin."""

    name: str
    module: str
    qualname: str
    arguments: dict[str, Any]
    scheduler_name: str
    search_path: tuple[str, ...]


class NodeUpserted(Message):
    """The row holds this node. A node that was not in the row before has no pods yet."""

    row: int
    node: Node


class NodeRemoved(Message):
    """The row is empty."""

    row: int


class PodUpserted(Message):
    """The pod is on the row's node; it replaces a pod with the same uid."""

    row: int
    pod: Pod


class PodRemoved(Message):
    """The pod is no longer on the row's node."""

    row: int
    uid: str


class EvaluationRequest(Message):
    """Filter or score the nodes of ``rows``; the reply keeps their order."""

    number: int
    verb: ExtenderVerb
    attempt: int
    pod: Pod
    rows: tuple[int, ...]
    now_ns: int


# -- from a worker
# ----------------------------------------------------------------------------------


class Ready(Message):
    """The plugin was created."""


class NodeRejections(msgspec.Struct, frozen=True, array_like=True):
    """Nodes that the plugin rejects with the same message."""

    message: str
    places: bytes
    """A bit for each node of the request."""


class FilterReply(Message):
    number: int
    rejections: tuple[NodeRejections, ...]


class ScoreReply(Message):
    number: int
    scores: tuple[int, ...]
    """One for each node of the request."""


class EvaluationFailed(Message):
    """The plugin failed. With ``number`` 0 it could not be created."""

    number: int
    message: str
    point: str
    reason: FailureReason


NodeTableChange = NodeUpserted | NodeRemoved | PodUpserted | PodRemoved
ToWorker = StartPlugin | NodeTableChange | EvaluationRequest
FromWorker = Ready | FilterReply | ScoreReply | EvaluationFailed

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """The encoded message, preceded by its length."""
    body = encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
