"""A memory of bounded size for answers that cost something to work out again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Answers by question; the one not asked for the longest goes when there are too many."""

    __slots__ = ("_answers", "_most")

    def __init__(self, most: int) -> None:
        self._answers: OrderedDict[K, V] = OrderedDict()
        self._most = most

    def get(self, question: K, work_out: Callable[[], V]) -> V:
        """The remembered answer, or the one that ``work_out`` gives now."""
        try:
            answer = self._answers[question]
        except KeyError:
            answer = self._answers[question] = work_out()
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)
            return answer
        self._answers.move_to_end(question)
        return answer

    def clear(self) -> None:
        self._answers.clear()
