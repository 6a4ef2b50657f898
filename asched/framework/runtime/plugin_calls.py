"""Calls into plugins: exceptions and invalid answers become :class:`PluginFailure`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    NormalizeScore,
    PermitResult,
    Plugin,
    PostFilterResult,
    PreEnqueuePlugin,
    PreFilterResult,
    ReserveResult,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.nodes import (
    MAX_NODE_SCORE,
    FilterResult,
    Int64Column,
    NodeInfo,
    Nodes,
    RowArray,
)
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderInterruption
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    OBSERVATION,
    FailureReason,
    describe_raised,
    failure_reason,
    to_printable,
)
from asched.framework.status import SUCCESS, Code, ObjectErrorStatus, Status
from asched.model.quantity import MAX_INT64, MIN_INT64

Args = ParamSpec("Args")
R = TypeVar("R")
P = TypeVar("P", bound=Plugin)


class PluginFailure(Exception):  # noqa: N818  control flow: it fails one attempt of one pod
    """A plugin raised or returned an invalid answer, which fails the attempt of its pod.

    Counted in :data:`~asched.framework.runtime.observation.FAILURES`.
    """

    def __init__(
        self,
        plugin: str,
        point: str,
        what: str,
        reason: FailureReason = FailureReason.INVALID_ANSWER,
    ) -> None:
        super().__init__(self._text(plugin, point, to_printable(what)))
        self.plugin = plugin
        self.point = point
        self.reason = reason
        self.by_object = False
        """Whether an object causes the failure, and not the plugin."""
        FAILURES.note(plugin, point, reason)

    def _text(self, plugin: str, point: str, what: str) -> str:
        return f"plugin {plugin} at {point}: {what}"


class FilterError(PluginFailure):
    """A filter returned an error for a node. The text is kube-scheduler's."""

    def __init__(self, status: Status, found: object) -> None:
        """``found``: the result of all filters, for explanations."""
        what = status.message or status.code.title
        super().__init__(status.plugin, "Filter", what, FailureReason.ERROR)
        self.found = found
        self.by_object = isinstance(status, ObjectErrorStatus)

    def _text(self, plugin: str, point: str, what: str) -> str:
        return f'running "{plugin}" filter plugin: {what}'


def invalid_answer(plugin: str, point: str, error: Exception) -> PluginFailure:
    """The failure of an answer that has the right type but invalid content."""
    return PluginFailure(plugin, point, _unusable(error))


def _unusable(error: Exception) -> str:
    return f"its answer cannot be used: {type(error).__name__}: {to_printable(error)}"


def error_answer(plugin: str, point: str, message: str) -> PluginFailure:
    """The failure of a valid answer with an error status."""
    return PluginFailure(plugin, point, message, FailureReason.ERROR)


@cache
def _derives(plugin: type[Plugin], base: type[Plugin]) -> bool:
    return issubclass(plugin, base)


def derives(plugin: Plugin, base: type[P]) -> TypeGuard[P]:
    """``isinstance(plugin, base)``, cached by type: isinstance() is slow for abstract classes."""
    return _derives(type(plugin), base)


class CallSite(NamedTuple, Generic[R]):
    """An extension point as failures name it, and the type that its method returns."""

    point: str
    answer: type[R]


PRE_FILTER = CallSite("PreFilter", PreFilterResult)
ADD_POD = CallSite("AddPod", Status)
REMOVE_POD = CallSite("RemovePod", Status)
FILTER = CallSite("Filter", Status)
FILTER_ALL = CallSite("Filter", FilterResult)
POST_FILTER = CallSite("PostFilter", PostFilterResult)
PRE_SCORE = CallSite("PreScore", Status)
SCORE_ALL: CallSite[Int64Column] = CallSite("Score", np.ndarray)
NORMALIZE_SCORE: CallSite[Int64Column] = CallSite("NormalizeScore", np.ndarray)
RESERVE = CallSite("Reserve", ReserveResult)
PERMIT = CallSite("Permit", PermitResult)
WAITING_POD_REVIEW = CallSite("Permit", type(None))


def call(
    plugin: Plugin, point: str, method: Callable[Args, R], *args: Args.args, **kwargs: Args.kwargs
) -> R:
    """Call a plugin's method.

    Raises :class:`PluginFailure` for any exception, ``SystemExit`` included, except
    :class:`ExtenderInterruption`.
    """
    if OBSERVATION.calls is not None:
        method = OBSERVATION.calls.wrap(plugin.name, point, method)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, point)
    try:
        return method(*args, **kwargs)
    except ExtenderInterruption:
        raise
    except BaseException as error:
        raise _raised(plugin, point, error) from error
    finally:
        CURRENT_CALL.call = outer


def checked_call(
    site: CallSite[R],
    plugin: Plugin,
    method: Callable[Args, R],
    *args: Args.args,
    **kwargs: Args.kwargs,
) -> R:
    """:func:`call`, which also raises if the answer is not of the site's type."""
    # Repeats the code of call(): one function call less, several times for each pod.
    if OBSERVATION.calls is not None:
        method = OBSERVATION.calls.wrap(plugin.name, site.point, method)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, site.point)
    try:
        answer: object = method(*args, **kwargs)
    except ExtenderInterruption:
        raise
    except BaseException as error:
        raise _raised(plugin, site.point, error) from error
    finally:
        CURRENT_CALL.call = outer
    # A third-party plugin may ignore its own annotations.
    if not isinstance(answer, site.answer):
        raise _unexpected(plugin, site, answer)
    return answer


def _raised(plugin: Plugin, point: str, error: BaseException) -> PluginFailure:
    what = describe_raised(plugin.name, point, error)
    return PluginFailure(plugin.name, point, what, failure_reason(error))


def _unexpected(plugin: Plugin, site: CallSite[Any], answer: object) -> PluginFailure:
    what = f"answered {_shown(answer)}, not a {site.answer.__name__}"
    return PluginFailure(plugin.name, site.point, what)


def _shown(answer: object) -> str:
    try:
        return to_printable(repr(answer))
    except BaseException:  # noqa: BLE001  __repr__ may be the plugin's code
        return f"a {type(answer).__name__}"


def applies_to(plugin: Plugin, pod: PodInfo) -> bool:
    """:meth:`Plugin.applies_to`. Raises :class:`PluginFailure`."""
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "AppliesTo")
    try:
        return bool(plugin.applies_to(pod))
    except BaseException as error:
        raise _raised(plugin, "AppliesTo", error) from error
    finally:
        CURRENT_CALL.call = outer


def gate_status(plugin: PreEnqueuePlugin, pod: PodInfo) -> Status | None:
    """The status with which a PreEnqueue plugin gates the pod; None if it does not. An exception
    gates the pod with an error status."""
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "PreEnqueue")
    try:
        status = plugin.pre_enqueue(pod)
        if status is SUCCESS or status.is_success:
            return None
        return check_status(plugin.name, "PreEnqueue", status).by(plugin.name)
    except PluginFailure as failure:
        return Status.error(str(failure)).by(plugin.name)
    except BaseException as error:  # noqa: BLE001  a plugin's defect affects only its own pods
        return Status.error(str(_raised(plugin, "PreEnqueue", error))).by(plugin.name)
    finally:
        CURRENT_CALL.call = outer


def check_status(plugin: str, point: str, status: Status) -> Status:
    """The status, if it can be printed and recorded. Raises :class:`PluginFailure` otherwise.

    Not called for :data:`SUCCESS`, which is by far the most frequent status.
    """
    fault = status_fault(status)
    if fault is not None:
        raise PluginFailure(plugin, point, fault)
    return status


def status_fault(status: Status) -> str | None:
    """Why the status cannot be printed or recorded; None if it can."""
    try:
        Code(status.code)
        status.message.encode()
        hash(status)
    except Exception as error:  # noqa: BLE001  what it contains may be the plugin's code
        return _unusable(error)
    return None


def filter_nodes(
    plugin: FilterPlugin | FilterAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> FilterResult:
    """One filter's result for every row, with either form of the plugin."""
    if derives(plugin, FilterAllPlugin):
        result = checked_call(FILTER_ALL, plugin, plugin.filter_all, state, pod, nodes)
        rejects = _check_filter_result(plugin, result, nodes.size)
        return result if rejects else FilterResult(result.codes, ())
    return _filter_each(cast("FilterPlugin", plugin), state, pod, nodes)


def _filter_each(
    plugin: FilterPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> FilterResult:
    """The result of a filter for single nodes. The loop runs thousands of times for a pod."""
    rows, infos = _alive(nodes)
    method = plugin.filter
    answers = call(plugin, "Filter", lambda: [method(state, pod, info) for info in infos])
    statuses: list[Status] = []
    numbers: dict[Status, int] = {}
    codes_of_alive: list[int] = []
    last, number = SUCCESS, 0
    for answer in answers:
        if answer is not last:
            # A third-party plugin may ignore its own annotations.
            if not isinstance(answer, Status):
                raise _unexpected(plugin, FILTER, answer)
            last, number = answer, 0
            if not answer.is_success:
                number = numbers.setdefault(answer, len(statuses) + 1)
                if number > len(statuses):
                    statuses.append(answer)
        codes_of_alive.append(number)
    codes = np.zeros(nodes.size, np.int32)
    codes[rows] = codes_of_alive
    return FilterResult(codes, statuses)


def _alive(nodes: Nodes) -> tuple[RowArray | slice, Sequence[NodeInfo]]:
    """The rows that have a node, and those nodes."""
    infos, alive = nodes.infos(), nodes.alive
    if alive.all():
        return slice(None), infos
    rows = np.flatnonzero(alive)
    return rows, [infos[row] for row in rows.tolist()]


def _check_filter_result(plugin: Plugin, result: FilterResult, size: int) -> bool:
    """Whether the result rejects any node. Raises :class:`PluginFailure` if it is invalid."""
    codes, known = result.codes, len(result.statuses)
    if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
        raise PluginFailure(plugin.name, "Filter", "codes that are not an array of integers")
    if len(codes) != size:
        raise PluginFailure(plugin.name, "Filter", f"{len(codes)} codes for {size} nodes")
    if not known:
        return False
    # Read as unsigned, a negative code is a large one.
    highest = int(codes.view(_unsigned(codes.dtype)).max(initial=0))
    if highest > known:
        what = f"a code of {codes.min()} or {codes.max()}, but {known} statuses"
        raise PluginFailure(plugin.name, "Filter", what)
    try:
        successes = any(status.is_success for status in result.statuses)
        hash(tuple(result.statuses))  # statuses are keys of dictionaries
    except Exception as error:
        raise invalid_answer(plugin.name, "Filter", error) from error
    if successes:
        raise PluginFailure(plugin.name, "Filter", "Success among the statuses of rejected nodes")
    return highest > 0


@cache
def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def filter_node(
    plugin: FilterPlugin | FilterAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes, row: int
) -> Status | None:
    """One filter's status for one row, None for a pass; with the form for one node if it exists."""
    if derives(plugin, FilterPlugin):
        status = checked_call(FILTER, plugin, plugin.filter, state, pod, nodes.info(row))
        return None if status.is_success else status
    return filter_nodes(plugin, state, pod, nodes.take(np.array([row], np.intp))).status(0)


def score_node(
    plugin: ScorePlugin | ScoreAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes, row: int
) -> int:
    """One plugin's raw score of one row; with the form for one node if it exists."""
    if not derives(plugin, ScorePlugin):
        return int(score_nodes(plugin, state, pod, nodes.take(np.array([row], np.intp)))[0])
    return _score(plugin, call(plugin, "Score", plugin.score, state, pod, nodes.info(row)))


def _score(plugin: Plugin, answer: object) -> int:
    """An answer as a score. Raises :class:`PluginFailure` if it is not one."""
    try:
        score = operator.index(answer)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        what = f"answered {_shown(answer)}, not an int"
        raise PluginFailure(plugin.name, "Score", what) from None
    if not MIN_INT64 <= score <= MAX_INT64:
        raise PluginFailure(plugin.name, "Score", f"a score of {score} is beyond 64 bits")
    return score


def score_nodes(
    plugin: ScorePlugin | ScoreAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> Int64Column:
    """One plugin's raw score of every row, with either form of the plugin."""
    if derives(plugin, ScoreAllPlugin):
        scores = checked_call(SCORE_ALL, plugin, plugin.score_all, state, pod, nodes)
        return _checked_scores(plugin, "Score", scores, nodes.size)
    rows, infos = _alive(nodes)
    method = cast("ScorePlugin", plugin).score
    answers = call(plugin, "Score", lambda: [method(state, pod, info) for info in infos])
    found = np.zeros(nodes.size, np.int64)
    found[rows] = _scores(plugin, answers)
    return found


def _scores(plugin: Plugin, answers: Sequence[object]) -> Sequence[int] | Int64Column:
    """Answers as scores. Raises :class:`PluginFailure` for the first that is not one."""
    if {*map(type, answers)} == {int}:
        try:
            return np.array(answers, np.int64)
        except OverflowError:
            pass  # one is too large; _score() reports it
    return [_score(plugin, answer) for answer in answers]


def normalized(plugin: Plugin, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
    """Scores after the plugin's normalization, if it has one, checked to be in range."""
    if derives(plugin, NormalizeScore):
        raw = scores
        scores = checked_call(NORMALIZE_SCORE, plugin, plugin.normalize, state, pod, raw)
        scores = _checked_scores(plugin, "NormalizeScore", scores, len(raw))
    check_range(plugin, scores)
    return scores


def _checked_scores(plugin: Plugin, point: str, scores: Int64Column, size: int) -> Int64Column:
    if scores.shape != (size,):
        shape = "x".join(map(str, scores.shape))
        raise PluginFailure(plugin.name, point, f"{shape} scores for {size} nodes")
    if scores.dtype == np.int64:
        return scores
    if not np.issubdtype(scores.dtype, np.integer):
        raise PluginFailure(plugin.name, point, f"scores of type {scores.dtype}, not integers")
    return scores.astype(np.int64, copy=False)


def check_score(plugin: Plugin, score: int) -> None:
    """:func:`check_range` for one score."""
    if not 0 <= score <= MAX_NODE_SCORE:
        what = f"a score of {score} or {score} is outside 0..{MAX_NODE_SCORE}"
        raise PluginFailure(plugin.name, "Score", what)


def within_range(scores: Int64Column) -> bool:
    """Whether all scores are 0 to 100."""
    if not len(scores):
        return True
    # Read as unsigned, a negative score is a large one. item(argmax()) is faster than max().
    unsigned = scores.view(np.uint64)
    return unsigned.item(unsigned.argmax()) <= MAX_NODE_SCORE


def check_range(plugin: Plugin, scores: Int64Column) -> None:
    """Raises :class:`PluginFailure` if a score is not within 0 to 100."""
    if not within_range(scores):
        what = f"a score of {scores.min()} or {scores.max()} is outside 0..{MAX_NODE_SCORE}"
        raise PluginFailure(plugin.name, "Score", what)
