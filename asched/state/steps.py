"""Long work in steps, between which others have their turn."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Yields after each step; what it returns is the result."""

STEP = 100
"""Things that are done in one step: some microseconds each."""


def all_of(things: Iterable[_T]) -> Steps[tuple[_T, ...]]:
    """The things, which are made as they are asked for."""
    made: list[_T] = []
    for thing in things:
        made.append(thing)
        if len(made) % STEP == 0:
            yield
    return tuple(made)


def in_one_go(steps: Steps[_T]) -> _T:
    """The result of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
