"""A stopwatch on some of the attempts: how long each extension point and each plugin took.

Whether an attempt is watched follows from the pod's uid and the attempt's number alone, so the same
ones are on every replica and in every repetition.
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
from asched.framework.nodes import Verdicts
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
"""Where kube-scheduler's metrics have another word."""
_ANSWERING_POINTS = frozenset({"PreFilter", "PostFilter", "Reserve", "Permit", "PreBind", "Bind"})
"""Points whose status is what their plugins answer; the others only succeed or fail."""


class TimedSpan:
    """What was spent on one plugin at one extension point, or on the point as a whole."""

    __slots__ = ("began_ns", "busy_ns", "calls", "ended_ns", "plugin", "point", "status")

    def __init__(self, point: str, plugin: str, began_ns: int) -> None:
        self.point = point
        self.plugin = plugin
        """Empty for the point as a whole."""
        self.began_ns = self.ended_ns = began_ns
        self.busy_ns = 0
        """Less than from beginning to end where it was gone back to."""
        self.calls = 0
        self.status = _SUCCESS

    def add(self, began_ns: int, ended_ns: int) -> None:
        self.ended_ns = ended_ns
        self.busy_ns += ended_ns - began_ns


class WatchedCycle(NamedTuple):
    """A scheduling or binding cycle that was watched."""

    pod: PodInfo
    attempt: int
    began_ns: int
    """By the monotonic clock, as all times here."""
    ended_ns: int
    points: Sequence[TimedSpan]
    plugins: Sequence[TimedSpan]
    decision: Decision | None
    """None for a binding cycle."""
    seq: int
    """The decision's number in the journal; 0 for a binding cycle, and where nobody wanted it."""

    @property
    def profile(self) -> str:
        return self.pod.pod.spec.scheduler_name


class CycleSink(Protocol):
    """Who wants to know of watched cycles."""

    @property
    def share(self) -> float:
        """Of all attempts this share, 0 to 1, is of interest."""

    @property
    def numbered(self) -> bool:
        """Whether it wants to know the decision's number."""

    def cycle(self, watched: WatchedCycle) -> None: ...


class HintSink(Protocol):
    """Who wants to know of queueing hints."""

    def hint(self, plugin: str, event: str, answer: str, duration_ns: int) -> None: ...


LOTS = 10_000


def lot(pod: PodInfo, attempt: int) -> int:
    """A number below :data:`LOTS`, the same for the same attempt always."""
    return (zlib.crc32(pod.uid.encode()) + attempt * 7919) % LOTS


class _Timer:
    """Keeps the time of one cycle. What a plugin calls in its turn (PostFilter tries filters) counts
    for the inner plugin as well, but for the outer extension point alone."""

    __slots__ = ("_depth", "_mark_ns", "_now_ns", "_open", "began_ns", "plugins", "points")

    def __init__(self, now_ns: MonotonicNs) -> None:
        self._now_ns = now_ns
        self.points: dict[str, TimedSpan] = {}
        self.plugins: dict[tuple[str, str], TimedSpan] = {}
        self.began_ns = self._mark_ns = now_ns()
        self._open: TimedSpan | None = None
        """The point that the cycle is at: what the framework itself does counts for it."""
        self._depth = 0

    def enter(self, point: str) -> None:
        now_ns = self._now_ns()
        self._charge(now_ns)
        self._open = self.points.get(point) or self._point(point, now_ns)

    def finish(self) -> int:
        ended_ns = self._now_ns()
        self._charge(ended_ns)
        return ended_ns

    def watched_cycle(
        self, pod: PodInfo, attempt: int, ended_ns: int, decision: Decision | None, seq: int
    ) -> WatchedCycle:
        points, plugins = [*self.points.values()], [*self.plugins.values()]
        return WatchedCycle(pod, attempt, self.began_ns, ended_ns, points, plugins, decision, seq)

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
            if status == _ERROR or (point in _ANSWERING_POINTS and status != "Skip"):
                whole.status = status

    def _charge(self, now_ns: int) -> None:
        if self._open is not None:
            self._open.add(self._mark_ns, now_ns)
        self._mark_ns = now_ns

    def _point(self, point: str, began_ns: int) -> TimedSpan:
        found = self.points[point] = TimedSpan(point, "", began_ns)
        return found


class CycleStopwatch:
    """An :class:`~asched.cycle.decide.AttemptObserver`: one attempt at a time.

    What it saw is told when the decision is durable.
    """

    def __init__(self, now_ns: MonotonicNs, sinks: Sequence[CycleSink]) -> None:
        self._now_ns = now_ns
        self._sinks = sinks
        self._watched_lots = LOTS * max((sink.share for sink in sinks), default=0.0)
        self._numbered = any(sink.numbered for sink in sinks)
        self._pod: PodInfo | None = None
        self._attempt = 0
        self._timer = _Timer(now_ns)
        self._uncommitted: list[tuple[PodInfo, int, _Timer, int, Decision]] = []

    def begin(self, pod: PodInfo, attempt: int) -> bool:
        # As lot(), which a call would make dearer: every attempt comes through here.
        if (zlib.crc32(pod.uid.encode()) + attempt * 7919) % LOTS >= self._watched_lots:
            return False
        self._pod, self._attempt = pod, attempt
        self._timer = _Timer(self._now_ns)
        return True

    def enter(self, point: str) -> None:
        self._timer.enter(point)

    def watched(self, plugin: str, point: str, method: Callable[Args, R]) -> Callable[Args, R]:
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
        assert self._pod is not None, "an attempt ends that was not begun"
        timer = self._timer
        self._uncommitted.append((self._pod, self._attempt, timer, timer.finish(), decision))

    def committed(self, batch: Sequence[AnyRecord], last_seq: int) -> None:
        """The records are durable, the last of them under this number."""
        if not self._uncommitted:
            return
        cycles, self._uncommitted = self._uncommitted, []
        seqs: dict[int, int] = {}
        if self._numbered:
            first_seq = last_seq - len(batch) + 1
            seqs = {id(record): first_seq + index for index, record in enumerate(batch)}
        for pod, attempt, timer, ended_ns, decision in cycles:
            seq = seqs.get(id(decision), 0)
            self._tell(timer.watched_cycle(pod, attempt, ended_ns, decision, seq))

    def binding(self, pod: PodInfo, attempt: int) -> BindingStopwatch | None:
        """For the binding cycle of an attempt; None where it is not to be watched."""
        if lot(pod, attempt) >= self._watched_lots:
            return None
        return BindingStopwatch(self._now_ns, pod, attempt, self._tell)

    def _tell(self, watched: WatchedCycle) -> None:
        if len(self._sinks) == 1:
            self._sinks[0].cycle(watched)
            return
        number = lot(watched.pod, watched.attempt)
        for sink in self._sinks:
            if number < sink.share * LOTS:
                sink.cycle(watched)


class BindingStopwatch:
    """Watches one binding cycle; many go on at the same time."""

    def __init__(
        self,
        now_ns: MonotonicNs,
        pod: PodInfo,
        attempt: int,
        tell: Callable[[WatchedCycle], None],
    ) -> None:
        self._timer = _Timer(now_ns)
        self._pod, self._attempt = pod, attempt
        self._tell = tell

    def watched(
        self, plugin: str, point: str, ask: Callable[Args, Awaitable[object]]
    ) -> Callable[Args, Awaitable[object]]:
        """What is called in place of ``ask``."""

        async def timed(*args: Args.args, **kwargs: Args.kwargs) -> object:
            status, began_ns = _ERROR, self._timer.begin()
            try:
                answer = await ask(*args, **kwargs)
                status = status_of(answer)
                return answer
            finally:
                self._timer.end(plugin, point, began_ns, status)

        return timed

    def end(self) -> None:
        """The cycle is over."""
        timer = self._timer
        self._tell(timer.watched_cycle(self._pod, self._attempt, timer.finish(), None, 0))


class HintStopwatch:
    """A :class:`~asched.framework.runtime.observation.HintObserver`."""

    def __init__(self, now_ns: MonotonicNs, sink: HintSink) -> None:
        self._now_ns = now_ns
        self._sink = sink

    def watched_hint(
        self, plugin: str, event: ClusterEvent, hint: QueueingHintFn
    ) -> QueueingHintFn:
        def timed(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
            answer, began_ns = "Error", self._now_ns()
            try:
                said = hint(pod, old, new)
                if isinstance(said, QueueingHint):
                    answer = said.value
                return said
            finally:
                self._sink.hint(plugin, event.label, answer, self._now_ns() - began_ns)

        return timed


def status_of(answer: object) -> str:
    """The ``status`` label for a plugin's answer. A plugin that answers for all nodes at once has
    succeeded whatever it says of each of them. Never raises: to watch a plugin must not change what
    becomes of its nonsense."""
    match answer:
        case Status():
            code: object = answer.code
        case PreFilterResult() | PostFilterResult() | ReserveResult() | PermitResult():
            code = getattr(answer.status, "code", None)
        case Verdicts():
            statuses: Sequence[object] = (
                answer.statuses if isinstance(answer.statuses, list | tuple) else ()
            )
            failed = any(getattr(status, "code", None) is Code.ERROR for status in statuses)
            code = Code.ERROR if failed else Code.SUCCESS
        case _:
            code = Code.SUCCESS
    return code.title if isinstance(code, Code) else _ERROR
