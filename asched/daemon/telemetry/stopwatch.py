"""Times extension points and plugins in a sample of the scheduling attempts.

The sample depends only on the pod's uid and the attempt's number, so that every replica and every
replay samples the same attempts.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from asched.framework.events import ClusterEvent, QueueingHint, QueueingHintFn
from asched.framework.interface import (
    PermitResult,
    PostFilterResult,
    PreFilterResult,
    ReserveResult,
)
from asched.framework.nodes import FilterResult
from asched.framework.pod_info import PodInfo
from asched.framework.status import Code, Status
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.state.records import AnyRecord, Decision

Args = ParamSpec("Args")
R = TypeVar("R")

MonotonicNs = Callable[[], int]

_SUCCESS, _ERROR = Code.SUCCESS.title, Code.ERROR.title
_UPSTREAM_POINTS = {"NormalizeScore": "ScoreExtensionNormalize"}
"""Extension points with other names in kube-scheduler's metrics."""
_STATUS_POINTS = frozenset({"PreFilter", "PostFilter", "Reserve", "Permit", "PreBind", "Bind"})
"""Points with the status of their plugins; other points only succeed or fail."""


class TimedSpan:
    """Time of one plugin at one extension point, or of the whole point."""

    __slots__ = ("began_ns", "busy_ns", "calls", "ended_ns", "plugin", "point", "status")

    def __init__(self, point: str, plugin: str, began_ns: int) -> None:
        self.point = point
        self.plugin = plugin
        """Empty for the whole point."""
        self.began_ns = self.ended_ns = began_ns
        self.busy_ns = 0
        """Less than ``ended_ns - began_ns`` if it was left and entered again."""
        self.calls = 0
        self.status = _SUCCESS

    def add(self, began_ns: int, ended_ns: int) -> None:
        self.ended_ns = ended_ns
        self.busy_ns += ended_ns - began_ns


class SampledCycle(NamedTuple):
    """Times of one scheduling or binding cycle."""

    pod: PodInfo
    attempt: int
    began_ns: int
    """By the monotonic clock, as all times in this module."""
    ended_ns: int
    points: Sequence[TimedSpan]
    plugins: Sequence[TimedSpan]
    decision: Decision | None
    """None for a binding cycle."""
    seq: int
    """The decision's sequence number in the journal; 0 for a binding cycle, and if no sink is
    ``numbered``."""

    @property
    def profile(self) -> str:
        return self.pod.pod.spec.scheduler_name


class CycleSink(Protocol):
    """Receives sampled cycles."""

    @property
    def share(self) -> float:
        """The share of attempts to sample, 0 to 1."""

    @property
    def numbered(self) -> bool:
        """Whether it needs the decision's sequence number."""

    def cycle(self, cycle: SampledCycle) -> None: ...


SAMPLE_RANGE = 10_000


def sample_number(pod: PodInfo, attempt: int) -> int:
    """A number below :data:`SAMPLE_RANGE` that is constant for the attempt."""
    return (zlib.crc32(pod.uid.encode()) + attempt * 7919) % SAMPLE_RANGE


class _CycleTimer:
    """Times one cycle. A call within a call (PostFilter runs filters) counts for both plugins, but
    only for the outer extension point."""

    __slots__ = ("_depth", "_mark_ns", "_now_ns", "_open", "began_ns", "plugins", "points")

    def __init__(self, now_ns: MonotonicNs) -> None:
        self._now_ns = now_ns
        self.points: dict[str, TimedSpan] = {}
        self.plugins: dict[tuple[str, str], TimedSpan] = {}
        self.began_ns = self._mark_ns = now_ns()
        self._open: TimedSpan | None = None
        """The present point: time outside plugins counts for it."""
        self._depth = 0

    def enter(self, point: str) -> None:
        now_ns = self._now_ns()
        self._charge(now_ns)
        self._open = self.points.get(point) or self._point(point, now_ns)

    def finish(self) -> int:
        ended_ns = self._now_ns()
        self._charge(ended_ns)
        return ended_ns

    def cycle(
        self, pod: PodInfo, attempt: int, ended_ns: int, decision: Decision | None, seq: int
    ) -> SampledCycle:
        return SampledCycle(
            pod=pod,
            attempt=attempt,
            began_ns=self.began_ns,
            ended_ns=ended_ns,
            points=[*self.points.values()],
            plugins=[*self.plugins.values()],
            decision=decision,
            seq=seq,
        )

    def begin(self) -> int:
        began_ns = self._now_ns()
        if not self._depth:
            self._charge(began_ns)
        self._depth += 1
        return began_ns

    def end(self, plugin: str, point: str, began_ns: int, status: str) -> None:
        ended_ns = self._mark_ns = self._now_ns()
        self._depth -= 1
        point = _UPSTREAM_POINTS.get(point, point)
        run = self.plugins.get((plugin, point))
        if run is None:
            run = self.plugins[plugin, point] = TimedSpan(point, plugin, began_ns)
        run.calls += 1
        run.add(began_ns, ended_ns)
        run.status = status
        if not self._depth:
            whole = self.points.get(point) or self._point(point, began_ns)
            whole.add(began_ns, ended_ns)
            if status == _ERROR or (point in _STATUS_POINTS and status != "Skip"):
                whole.status = status

    def _charge(self, now_ns: int) -> None:
        if self._open is not None:
            self._open.add(self._mark_ns, now_ns)
        self._mark_ns = now_ns

    def _point(self, point: str, began_ns: int) -> TimedSpan:
        found = self.points[point] = TimedSpan(point, "", began_ns)
        return found


class CycleStopwatch:
    """An :class:`~asched.cycle.decide.AttemptObserver`: times one attempt at a time. Sinks receive
    a cycle once its decision is durable."""

    def __init__(self, now_ns: MonotonicNs, sinks: Sequence[CycleSink]) -> None:
        self._now_ns = now_ns
        self._sinks = sinks
        self._sample_limit = SAMPLE_RANGE * max((sink.share for sink in sinks), default=0.0)
        self._numbered = any(sink.numbered for sink in sinks)
        self._pod: PodInfo | None = None
        self._attempt = 0
        self._timer = _CycleTimer(now_ns)
        self._uncommitted: list[tuple[PodInfo, int, _CycleTimer, int, Decision]] = []

    def begin(self, pod: PodInfo, attempt: int) -> bool:
        # Inlined sample_number(): this runs for every attempt.
        if (zlib.crc32(pod.uid.encode()) + attempt * 7919) % SAMPLE_RANGE >= self._sample_limit:
            return False
        self._pod, self._attempt = pod, attempt
        self._timer = _CycleTimer(self._now_ns)
        return True

    def enter(self, point: str) -> None:
        self._timer.enter(point)

    def wrap(self, plugin: str, point: str, method: Callable[Args, R]) -> Callable[Args, R]:
        timer = self._timer

        def timed(*args: Args.args, **kwargs: Args.kwargs) -> R:
            status, began_ns = _ERROR, timer.begin()
            try:
                answer = method(*args, **kwargs)
                status = status_of(answer)
                return answer
            finally:
                timer.end(plugin, point, began_ns, status)

        return timed

    def end(self, decision: Decision) -> None:
        assert self._pod is not None, "end() without begin()"
        timer = self._timer
        self._uncommitted.append((self._pod, self._attempt, timer, timer.finish(), decision))

    def committed(self, batch: Sequence[AnyRecord], last_seq: int) -> None:
        """The batch is durable; ``last_seq`` is the number of its last record."""
        if not self._uncommitted:
            return
        cycles, self._uncommitted = self._uncommitted, []
        seqs: dict[int, int] = {}
        if self._numbered:
            first_seq = last_seq - len(batch) + 1
            seqs = {id(record): first_seq + index for index, record in enumerate(batch)}
        for pod, attempt, timer, ended_ns, decision in cycles:
            seq = seqs.get(id(decision), 0)
            self._emit(timer.cycle(pod, attempt, ended_ns, decision, seq))

    def binding(self, pod: PodInfo, attempt: int) -> BindingStopwatch | None:
        """Times the binding cycle of an attempt; None if it is not sampled."""
        if sample_number(pod, attempt) >= self._sample_limit:
            return None
        return BindingStopwatch(self._now_ns, pod, attempt, self._emit)

    def _emit(self, cycle: SampledCycle) -> None:
        if len(self._sinks) == 1:
            self._sinks[0].cycle(cycle)
            return
        number = sample_number(cycle.pod, cycle.attempt)
        for sink in self._sinks:
            if number < sink.share * SAMPLE_RANGE:
                sink.cycle(cycle)


class BindingStopwatch:
    """Times one binding cycle; several run concurrently."""

    def __init__(
        self,
        now_ns: MonotonicNs,
        pod: PodInfo,
        attempt: int,
        emit: Callable[[SampledCycle], None],
    ) -> None:
        self._timer = _CycleTimer(now_ns)
        self._pod, self._attempt = pod, attempt
        self._emit = emit

    def wrap(
        self, plugin: str, point: str, method: Callable[Args, Awaitable[object]]
    ) -> Callable[Args, Awaitable[object]]:
        """``method``, timed."""

        async def timed(*args: Args.args, **kwargs: Args.kwargs) -> object:
            status, began_ns = _ERROR, self._timer.begin()
            try:
                answer = await method(*args, **kwargs)
                status = status_of(answer)
                return answer
            finally:
                self._timer.end(plugin, point, began_ns, status)

        return timed

    def end(self) -> None:
        """The cycle ended."""
        timer = self._timer
        self._emit(timer.cycle(self._pod, self._attempt, timer.finish(), None, 0))


class HintStopwatch:
    """A :class:`~asched.framework.runtime.observation.HintObserver`."""

    def __init__(self, now_ns: MonotonicNs, sink: Callable[[str, str, str, int], None]) -> None:
        """``sink`` gets the plugin, the event, the result and the duration in nanoseconds."""
        self._now_ns = now_ns
        self._sink = sink

    def wrap_hint(self, plugin: str, event: ClusterEvent, hint: QueueingHintFn) -> QueueingHintFn:
        def timed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
            result, began_ns = "Error", self._now_ns()
            try:
                answer = hint(pod, old, new)
                if isinstance(answer, QueueingHint):
                    result = answer.value
                return answer
            finally:
                self._sink(plugin, event.label, result, self._now_ns() - began_ns)

        return timed


def status_of(answer: object) -> str:
    """The ``status`` label for a plugin's answer.

    A plugin that answers for all nodes at once succeeds whatever its results for single nodes are.
    Never raises: timing a plugin must not change how its invalid answers are handled.
    """
    match answer:
        case Status():
            code: object = answer.code
        case PreFilterResult() | PostFilterResult() | ReserveResult() | PermitResult():
            code = getattr(answer.status, "code", None)
        case FilterResult():
            statuses: Sequence[object] = (
                answer.statuses if isinstance(answer.statuses, list | tuple) else ()
            )
            failed = any(getattr(status, "code", None) is Code.ERROR for status in statuses)
            code = Code.ERROR if failed else Code.SUCCESS
        case _:
            code = Code.SUCCESS
    return code.title if isinstance(code, Code) else _ERROR
