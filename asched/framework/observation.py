"""Watching the core from outside, to measure it or to trace it.

The pure packages look at no clock. Who has one may watch: the daemon sets an observer for the length
of one synchronous call, a scheduling cycle or a turn's folds, and only of those that it samples.
Nothing that an observer does changes a decision, and without one there is nothing to pay but a
comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from asched.framework.events import ClusterEvent, QueueingHintFn

Args = ParamSpec("Args")
R = TypeVar("R")


class CallObserver(Protocol):
    """Watches one scheduling cycle."""

    def enter(self, point: str) -> None:
        """The cycle is at this extension point from now on."""

    def watched(self, plugin: str, point: str, method: Callable[Args, R]) -> Callable[Args, R]:
        """What is called in place of a plugin's method; it has to call that, and hand through what
        it answers or raises."""


class HintObserver(Protocol):
    """Watches queueing hints."""

    def watched_hint(
        self, plugin: str, event: ClusterEvent, hint: QueueingHintFn
    ) -> QueueingHintFn:
        """As :meth:`CallObserver.watched`."""


class Observation:
    """Who watches now, None for nobody. Set and unset by who calls the core.

    It is looked at for every pod: with ``is not None`` on the spot, as a call would be felt.
    """

    __slots__ = ("calls", "hints")

    def __init__(self) -> None:
        self.calls: CallObserver | None = None
        self.hints: HintObserver | None = None


OBSERVATION = Observation()
