"""The program: compared with all placements of small gangs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from asched_optimal.program import Cell, GangProgram, Objective, solve
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def programs(draw: st.DrawFn) -> GangProgram:
    kinds, nodes = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    cells = [(kind, node) for kind in range(kinds) for node in range(nodes)]
    pairs = st.tuples(st.sampled_from(cells), st.sampled_from(cells))
    conflicts: dict[Cell, set[Cell]] = {}
    for one, other in draw(st.lists(pairs, max_size=4)):
        conflicts.setdefault(one, set()).add(other)
    sizes = st.integers(1, 3)
    return GangProgram(
        counts=tuple(draw(st.lists(st.integers(1, 3), min_size=kinds, max_size=kinds))),
        requests=np.array([[float(draw(sizes)), float(draw(sizes))] for _ in range(kinds)]),
        idle=np.array([[float(draw(st.integers(0, 5))) for _ in "ab"] for _ in range(nodes)]),
        allowed=np.array([[draw(st.booleans()) for _ in range(nodes)] for _ in range(kinds)]),
        domains=tuple(draw(st.integers(0, 1)) for _ in range(nodes)),
        conflicts={cell: frozenset(others) for cell, others in conflicts.items()},
    )


def placements(program: GangProgram) -> Iterator[dict[Cell, int]]:
    """All of them."""
    cells = program.cells
    for numbers in product(*(range(program.counts[kind] + 1) for kind, _ in cells)):
        found = {cell: n for cell, n in zip(cells, numbers, strict=True) if n}
        if is_valid(program, found):
            yield found


def is_valid(program: GangProgram, placement: dict[Cell, int]) -> bool:
    used = np.zeros_like(program.idle)
    totals = [0] * len(program.counts)
    for (kind, node), number in placement.items():
        if not program.allowed[kind, node]:
            return False
        used[node] += number * program.requests[kind]
        totals[kind] += number
    if (used > program.idle).any() or any(map(int.__gt__, totals, program.counts)):
        return False
    for cell, number in placement.items():
        forbidden = program.conflicts.get(cell, frozenset())
        if (cell in forbidden and number > 1) or any(o in placement for o in forbidden - {cell}):
            return False
    return True


@settings(max_examples=150, derandomize=True, deadline=None)
@given(programs())
def test_solution_is_the_best_of_all_placements(program: GangProgram) -> None:
    best = max((program.value(each) for each in placements(program)), default=Objective(0, 0, 0))
    found = solve(program)
    if found is None:
        assert best == Objective(0, 0, 0)
        return
    assert is_valid(program, found)
    assert program.value(found) == best
    assert solve(program) == found


def test_a_program_beyond_the_limit_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    program = GangProgram(
        counts=(2,),
        requests=np.array([[1.0]]),
        idle=np.array([[1.0], [1.0]]),
        allowed=np.array([[True, True]]),
        domains=(0, 0),
    )
    assert solve(program) == {(0, 0): 1, (0, 1): 1}
    monkeypatch.setattr("asched_optimal.program.MAX_VARIABLES", 1)
    assert solve(program) is None
