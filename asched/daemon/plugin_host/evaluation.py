"""Evaluates one plugin for some nodes, in the daemon or in a worker.

A worker gets requests as msgpack messages, each preceded by its length. Neither side can make the
other execute code.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple, dataclass_transform

import msgspec
import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    Plugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import BoolColumn, Int64Column, Nodes
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.diagnosis import FILTER_CODES
from asched.framework.runtime.extenders import ExtenderVerb
from asched.framework.runtime.observation import FailureReason
from asched.framework.runtime.plugin_calls import (
    PRE_FILTER,
    PRE_SCORE,
    check_status,
    checked_call,
    error_answer,
    filter_nodes,
    invalid_answer,
    normalized,
    score_nodes,
)
from asched.framework.status import Status
from asched.model.node import Node
from asched.model.pod import Pod

_MAX_ATTEMPTS = 64
"""CycleStates that are kept; PreFilter runs again for an older attempt."""


class AttemptKey(NamedTuple):
    uid: str
    attempt: int


class FilterRejection(NamedTuple):
    """Nodes that the plugin rejects with the same message."""

    message: str
    where: BoolColumn
    """By position in the request."""


class PluginEvaluator:
    """Runs Filter and Score of one plugin, and keeps the CycleStates of recent attempts."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._states: OrderedDict[AttemptKey, CycleState] = OrderedDict()

    def filter(self, attempt: AttemptKey, pod: PodInfo, nodes: Nodes) -> list[FilterRejection]:
        """The nodes that the plugin rejects. Raises :class:`PluginFailure`."""
        plugin, state = self._plugin, self._begin(attempt)
        result = self._pre_filter(state, pod, nodes)
        if result.status.is_rejection:
            return [FilterRejection(result.status.message, np.ones(nodes.size, np.bool_))]
        if plugin.name in state.skip_filter:
            return []
        rejections = []
        if result.node_names is not None:
            try:
                left_out = [name not in result.node_names for name in nodes.names]
            except TypeError as error:
                raise invalid_answer(plugin.name, "PreFilter", error) from error
            message = f"node(s) didn't satisfy plugin {plugin.name}"
            rejections.append(FilterRejection(message, np.array(left_out, np.bool_)))
        if isinstance(plugin, FilterPlugin | FilterAllPlugin):
            found = filter_nodes(plugin, state, pod, nodes)
            for number, status in enumerate(found.statuses, 1):
                where = found.codes == number
                if where.any():
                    check_status(plugin.name, "Filter", status)
                    if status.code not in FILTER_CODES:
                        raise error_answer(plugin.name, "Filter", _text(status))
                    rejections.append(FilterRejection(status.message, where))
        return rejections

    def score(self, attempt: AttemptKey, pod: PodInfo, nodes: Nodes) -> Int64Column:
        """The plugin's normalized scores, 0 to 100. Raises :class:`PluginFailure`."""
        plugin = self._plugin
        state = self._states.get(attempt)
        if state is None:
            state = self._begin(attempt)
            self._pre_filter(state, pod, nodes)
        if isinstance(plugin, PreScorePlugin):
            status = checked_call(PRE_SCORE, plugin, plugin.pre_score, state, pod, nodes)
            check_status(plugin.name, "PreScore", status)
            if status.is_skip:
                return np.zeros(nodes.size, np.int64)
            if not status.is_success:
                raise error_answer(plugin.name, "PreScore", status.message)
        if not isinstance(plugin, ScorePlugin | ScoreAllPlugin):
            return np.zeros(nodes.size, np.int64)
        return normalized(plugin, state, pod, score_nodes(plugin, state, pod, nodes))

    def _begin(self, attempt: AttemptKey) -> CycleState:
        state = self._states[attempt] = CycleState()
        self._states.move_to_end(attempt)
        if len(self._states) > _MAX_ATTEMPTS:
            self._states.popitem(last=False)
        return state

    def _pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        plugin = self._plugin
        if not isinstance(plugin, PreFilterPlugin):
            return PreFilterResult()
        result = checked_call(PRE_FILTER, plugin, plugin.pre_filter, state, pod, nodes)
        check_status(plugin.name, "PreFilter", result.status)
        if result.status.is_skip:
            state.skip_filter.add(plugin.name)
        elif not result.status.is_success and not result.status.is_rejection:
            raise error_answer(plugin.name, "PreFilter", _text(result.status))
        return result


def _text(status: Status) -> str:
    return status.message or status.code.title


# -- the protocol between the daemon and a worker -------------------------------------------------

LENGTH_BYTES: Final = 4


@dataclass_transform(frozen_default=True)
class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class StartPlugin(Message):
    """First message to a worker: create this plugin."""

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
