"""Calls into plugins: what they raise or get wrong becomes a failure with their name on it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ParamSpec, TypeGuard, TypeVar, cast

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    FilterPlugin,
    NormalizeScore,
    Plugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    ScoreAllPlugin,
    ScorePlugin,
)
from asched.framework.node_classes import ScoresByClass
from asched.framework.nodes import (
    MAX_NODE_SCORE,
    Int64Column,
    NodeInfo,
    Nodes,
    RowArray,
    FilterResult,
)
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    OBSERVATION,
    FailureReason,
    to_printable,
    failure_reason,
)
from asched.framework.runtime.profile import ExtenderInterruption
from asched.framework.status import SUCCESS, Code, Status
from asched.model.quantity import MAX_INT64, MIN_INT64

Args = ParamSpec("Args")
R = TypeVar("R")


class PluginFailure(Exception):  # noqa: N818  it is caught by name, never shown as an error class
    """A plugin raised or answered nonsense. It fails the attempt of its pod, nothing more. Counted in
    :data:`~asched.framework.runtime.observation.FAILURES`."""

    def __init__(
        self,
        plugin: str,
        point: str,
        what: str,
        reason: FailureReason = FailureReason.NONSENSE,
    ) -> None:
        super().__init__(f"plugin {plugin} at {point}: {to_printable(what)}")
        self.plugin = plugin
        self.point = point
        self.reason = reason
        FAILURES.note(plugin, point, reason)


def invalid_answer(plugin: str, point: str, error: Exception) -> PluginFailure:
    """A plugin's answer was of the right type, and yet nothing can be made of it."""
    what = f"its answer cannot be used: {type(error).__name__}: {to_printable(error)}"
    return PluginFailure(plugin, point, what)


# Which forms a plugin has is asked several times for each pod, and an abstract base is slow to answer.


@cache
def _derives(plugin: type[Plugin], base: type[Plugin]) -> bool:
    return issubclass(plugin, base)


def filters_one(plugin: Plugin) -> TypeGuard[FilterPlugin]:
    return _derives(type(plugin), FilterPlugin)


def filters_all(plugin: Plugin) -> TypeGuard[FilterAllPlugin]:
    return _derives(type(plugin), FilterAllPlugin)


def scores_all(plugin: Plugin) -> TypeGuard[ScoreAllPlugin]:
    return _derives(type(plugin), ScoreAllPlugin)


def scores_one(plugin: Plugin) -> TypeGuard[ScorePlugin]:
    return _derives(type(plugin), ScorePlugin)


def has_prefilter_extensions(plugin: Plugin) -> TypeGuard[PreFilterExtensions]:
    return _derives(type(plugin), PreFilterExtensions)


def normalizes(plugin: Plugin) -> TypeGuard[NormalizeScore]:
    return _derives(type(plugin), NormalizeScore)


def scores_by_class(plugin: Plugin) -> TypeGuard[ScoresByClass]:
    return _derives(type(plugin), ScoresByClass)


def call(
    plugin: Plugin, point: str, method: Callable[Args, R], *args: Args.args, **kwargs: Args.kwargs
) -> R:
    """Call a plugin's method. Raises :class:`PluginFailure` for whatever it raises, ``SystemExit``
    and its like included, but lets :class:`ExtenderInterruption` pass, which is no doing of the
    plugin's."""
    if OBSERVATION.calls is not None:
        method = OBSERVATION.calls.watched(plugin.name, point, method)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, point)
    try:
        return method(*args, **kwargs)
    except ExtenderInterruption:
        raise
    except BaseException as error:
        raise _raised(plugin, point, error) from error
    finally:
        CURRENT_CALL.call = outer


def _raised(plugin: Plugin, point: str, error: BaseException) -> PluginFailure:
    what = f"{type(error).__name__}: {to_printable(error)}"
    return PluginFailure(plugin.name, point, what, failure_reason(error))


def applies_to(plugin: Plugin, pod: PodInfo) -> bool:
    """Whether the plugin has anything to do for the pod. Raises :class:`PluginFailure`."""
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "AppliesTo")
    try:
        return bool(plugin.applies_to(pod))
    except BaseException as error:
        raise _raised(plugin, "AppliesTo", error) from error
    finally:
        CURRENT_CALL.call = outer


def gate_status(plugin: PreEnqueuePlugin, pod: PodInfo) -> Status | None:
    """Why a PreEnqueue plugin keeps the pod out of the queue, with the plugin's name; None where it
    does not. One that raises keeps it out, too: its text is the error's."""
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "PreEnqueue")
    try:
        status = plugin.pre_enqueue(pod)
        if status.is_success:
            return None
        return check_status(plugin.name, "PreEnqueue", status).by(plugin.name)
    except PluginFailure as failure:
        return Status.error(str(failure)).by(plugin.name)
    except BaseException as error:  # noqa: BLE001  a plugin's bug holds its pods back, no more
        return Status.error(str(_raised(plugin, "PreEnqueue", error))).by(plugin.name)
    finally:
        CURRENT_CALL.call = outer


def ask(
    expected: type[R],
    plugin: Plugin,
    point: str,
    method: Callable[Args, R],
    *args: Args.args,
    **kwargs: Args.kwargs,
) -> R:
    """As :func:`call`; an answer of another type than ``expected`` is a failure too."""
    # All of call() once more: it is done several times for each pod, and one call less is felt.
    if OBSERVATION.calls is not None:
        method = OBSERVATION.calls.watched(plugin.name, point, method)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, point)
    try:
        answer: object = method(*args, **kwargs)
    except ExtenderInterruption:
        raise
    except BaseException as error:
        raise _raised(plugin, point, error) from error
    finally:
        CURRENT_CALL.call = outer
    # A plugin is foreign code: its annotations promise nothing.
    if not isinstance(answer, expected):
        raise _unexpected(plugin, point, answer, expected)
    return answer


def error_answer(plugin: str, point: str, message: str) -> PluginFailure:
    """A plugin's proper answer was neither a yes nor a no: it says that something failed."""
    return PluginFailure(plugin, point, message, FailureReason.ERROR)


def _unexpected(plugin: Plugin, point: str, answer: object, expected: type) -> PluginFailure:
    what = f"answered {_shown(answer)}, not a {expected.__name__}"
    return PluginFailure(plugin.name, point, what)


def check_status(plugin: str, point: str, status: Status) -> Status:
    """The status, if it is one whose words can be told and recorded. Raises :class:`PluginFailure`.

    For statuses that say something: :data:`SUCCESS` is asked about too often.
    """
    try:
        Code(status.code)
        status.message.encode()
        hash(status)
    except Exception as error:
        raise invalid_answer(plugin, point, error) from error
    return status


def _shown(answer: object) -> str:
    try:
        return to_printable(repr(answer))
    except BaseException:  # noqa: BLE001  its repr may be a plugin's code
        return f"a {type(answer).__name__}"


def filter_nodes(
    plugin: FilterPlugin | FilterAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> FilterResult:
    """One filter's verdict on every row, whichever form the plugin is written in."""
    if filters_all(plugin):
        verdicts = ask(FilterResult, plugin, "Filter", plugin.filter_all, state, pod, nodes)
        refuses = _check_verdicts(plugin, verdicts, nodes.size)
        return verdicts if refuses else FilterResult(verdicts.codes, ())
    return _filter_each(cast("FilterPlugin", plugin), state, pod, nodes)


def _filter_each(plugin: FilterPlugin, state: CycleState, pod: PodInfo, nodes: Nodes) -> FilterResult:
    """The verdicts of a filter that is written for one node. It is called once for each, so what is
    done around a call counts thousands of times for a pod."""
    rows, infos = _alive(nodes)
    answers = _each(plugin, "Filter", plugin.filter, state, pod, infos)
    statuses: list[Status] = []
    numbers: dict[Status, int] = {}
    verdicts: list[int] = []
    last, number = SUCCESS, 0
    for answer in answers:
        if answer is not last:
            # A plugin is foreign code: its annotations promise nothing.
            if not isinstance(answer, Status):
                raise _unexpected(plugin, "Filter", answer, Status)
            last, number = answer, 0
            if not answer.is_success:
                number = numbers.setdefault(answer, len(statuses) + 1)
                if number > len(statuses):
                    statuses.append(answer)
        verdicts.append(number)
    codes = np.zeros(nodes.size, np.int16)
    codes[rows] = verdicts
    return FilterResult(codes, statuses)


def _alive(nodes: Nodes) -> tuple[RowArray | slice, Sequence[NodeInfo]]:
    """The rows that have a node, and those nodes."""
    infos, alive = nodes.infos(), nodes.alive
    if alive.all():
        return slice(None), infos
    rows = np.flatnonzero(alive)
    return rows, [infos[row] for row in rows.tolist()]


def _each(
    plugin: Plugin,
    point: str,
    method: Callable[[CycleState, PodInfo, NodeInfo], R],
    state: CycleState,
    pod: PodInfo,
    infos: Sequence[NodeInfo],
) -> list[R]:
    """What a method answers to each of the nodes. Raises as :func:`call`."""

    def each() -> list[R]:
        return [method(state, pod, info) for info in infos]

    ask_all = each
    if OBSERVATION.calls is not None:
        ask_all = OBSERVATION.calls.watched(plugin.name, point, each)
    outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, point)
    try:
        return ask_all()
    except ExtenderInterruption:
        raise
    except BaseException as error:
        raise _raised(plugin, point, error) from error
    finally:
        CURRENT_CALL.call = outer


def _check_verdicts(plugin: Plugin, verdicts: FilterResult, size: int) -> bool:
    """Whether they refuse any node."""
    codes, known = verdicts.codes, len(verdicts.statuses)
    if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
        raise PluginFailure(plugin.name, "Filter", "verdicts that are no array of integers")
    if len(codes) != size:
        raise PluginFailure(plugin.name, "Filter", f"{len(codes)} verdicts for {size} nodes")
    # Seen as unsigned, a negative code is a large one.
    highest = int(codes.view(_unsigned(codes.dtype)).max(initial=0)) if known else 0
    if highest > known:
        what = f"a verdict of {codes.min()} or {codes.max()}, but {known} statuses"
        raise PluginFailure(plugin.name, "Filter", what)
    try:
        successes = any(status.is_success for status in verdicts.statuses)
        hash(tuple(verdicts.statuses))  # as they are told apart by it
    except Exception as error:
        raise invalid_answer(plugin.name, "Filter", error) from error
    if successes:
        raise PluginFailure(plugin.name, "Filter", "Success among the statuses of refused nodes")
    return highest > 0


@cache
def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def filter_node(
    plugin: FilterPlugin | FilterAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes, row: int
) -> Status | None:
    """One filter's verdict on one row, None for a pass; by its form for one node if it has that."""
    if filters_one(plugin):
        status = ask(Status, plugin, "Filter", plugin.filter, state, pod, nodes.info(row))
        return None if status.is_success else status
    return filter_nodes(plugin, state, pod, nodes.take(np.array([row], np.intp))).status(0)


def score_node(
    plugin: ScorePlugin | ScoreAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes, row: int
) -> int:
    """One plugin's raw score of one row; by its form for one node if it has that."""
    if not scores_one(plugin):
        return int(score_nodes(plugin, state, pod, nodes.take(np.array([row], np.intp)))[0])
    return _score(plugin, call(plugin, "Score", plugin.score, state, pod, nodes.info(row)))


def _score(plugin: Plugin, answer: object) -> int:
    """An answer to one node as a score. Raises :class:`PluginFailure`."""
    try:
        score = operator.index(answer)  # type: ignore[arg-type]  # which is the question
    except TypeError:
        what = f"answered {_shown(answer)}, not an int"
        raise PluginFailure(plugin.name, "Score", what) from None
    if not MIN_INT64 <= score <= MAX_INT64:
        raise PluginFailure(plugin.name, "Score", f"a score of {score} is beyond 64 bits")
    return score


def score_nodes(
    plugin: ScorePlugin | ScoreAllPlugin, state: CycleState, pod: PodInfo, nodes: Nodes
) -> Int64Column:
    """One plugin's raw score of every row, whichever form it is written in."""
    if scores_all(plugin):
        scores = ask(np.ndarray, plugin, "Score", plugin.score_all, state, pod, nodes)
        return _checked_scores(plugin, "Score", scores, nodes.size)
    rows, infos = _alive(nodes)
    answers = _each(plugin, "Score", cast("ScorePlugin", plugin).score, state, pod, infos)
    found = np.zeros(nodes.size, np.int64)
    found[rows] = _scores(plugin, answers)
    return found


def _scores(plugin: Plugin, answers: Sequence[object]) -> Sequence[int] | Int64Column:
    """Answers to many nodes as scores. Raises :class:`PluginFailure` for the first that is none."""
    if {*map(type, answers)} == {int}:
        try:
            return np.array(answers, np.int64)
        except OverflowError:
            pass  # one of them is too large: which?
    return [_score(plugin, answer) for answer in answers]


def normalized(plugin: Plugin, state: CycleState, pod: PodInfo, scores: Int64Column) -> Int64Column:
    """Scores brought into 0 to 100 by the plugin itself, and checked to be there."""
    if normalizes(plugin):
        raw = scores
        scores = ask(np.ndarray, plugin, "NormalizeScore", plugin.normalize, state, pod, raw)
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
    """:func:`check_range` for one."""
    if not 0 <= score <= MAX_NODE_SCORE:
        what = f"a score of {score} or {score} is outside 0..{MAX_NODE_SCORE}"
        raise PluginFailure(plugin.name, "Score", what)


def within_range(scores: Int64Column) -> bool:
    """Whether all are 0 to 100."""
    # Seen as unsigned, a negative score is a large one.
    return not len(scores) or bool(scores.view(np.uint64).max() <= MAX_NODE_SCORE)


def check_range(plugin: Plugin, scores: Int64Column) -> None:
    if not within_range(scores):
        what = f"a score of {scores.min()} or {scores.max()} is outside 0..{MAX_NODE_SCORE}"
        raise PluginFailure(plugin.name, "Score", what)
