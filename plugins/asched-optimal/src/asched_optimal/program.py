"""The placement of one gang as a mixed-integer program, solved by HiGHS.

Equal tasks are counted together. The solver is limited by work and not by time: with one thread, a
fixed seed and limits of nodes and iterations, the same program has the same answer on every
machine, so a replay repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_highs: Any = import_module("highspy")
"""It has no types."""

MAX_VARIABLES: Final = 1_500
"""Kinds of tasks times nodes. A larger program is not solved: it takes more than a few seconds."""
MAX_CONFLICTS: Final = 2_000
"""Pairs of cells that exclude each other. More are not solved: the relaxation is weak."""
MAX_BRANCHES: Final = 50
"""Nodes of the branch-and-bound tree, for each objective."""
GAP: Final = 0.1
"""Relative difference from the proven bound at which a search for fewer domains or nodes ends. The
proof of the last few takes most of the time. Up to nine domains or nodes are the fewest."""
MAX_ITERATIONS: Final = 50_000
"""Simplex iterations of each linear program."""
_TOLERANCE: Final = 1e-6

Cell = tuple[int, int]
"""A kind of tasks, and a node."""


class Objective(NamedTuple):
    """The value of a placement; a greater one is better."""

    placed: int
    """Number of tasks."""
    domains: int
    """Number of topology domains in use, negative."""
    nodes: int
    """Number of nodes in use, negative."""


@dataclass(frozen=True)
class GangProgram:
    """Kinds of equal tasks, and the nodes that they may use."""

    counts: tuple[int, ...]
    """Tasks by kind."""
    requests: NDArray[np.float64]
    """By kind and resource."""
    idle: NDArray[np.float64]
    """By node and resource."""
    allowed: NDArray[np.bool_]
    """By kind and node: whether a task may run there as things are."""
    domains: tuple[int, ...]
    """The topology domain of each node; different numbers where there is none."""
    conflicts: Mapping[Cell, frozenset[Cell]] = field(default_factory=dict)
    """By cell, the cells that a task there forbids. A cell that forbids itself has one task."""

    @property
    def cells(self) -> list[Cell]:
        return [(int(kind), int(node)) for kind, node in np.argwhere(self.allowed)]

    def value(self, placement: Mapping[Cell, int]) -> Objective:
        """The value of a placement."""
        nodes = {node for (_, node), number in placement.items() if number}
        domains = {self.domains[node] for node in nodes}
        return Objective(sum(placement.values()), -len(domains), -len(nodes))


def solve(program: GangProgram) -> dict[Cell, int] | None:
    """A placement with the greatest value that the solver finds within its limits; None without.

    First as many tasks as possible, then the fewest domains for that many, then the fewest nodes.
    """
    cells = program.cells
    if not cells or len(cells) > MAX_VARIABLES:
        return None
    if sum(map(len, program.conflicts.values())) > MAX_CONFLICTS:
        return None
    model = _Model(program, cells)
    found = model.maximize(sum(model.tasks.values()))
    if found is None:
        return None
    model.require(sum(model.tasks.values()) >= sum(found.values()))
    model.accept_gap(GAP)
    for uses in (model.domains, model.nodes):
        better = model.minimize(sum(uses.values()))
        if better is None:
            break
        if program.value(better) > program.value(found):
            found = better
        model.require(sum(uses.values()) <= model.used(uses))
    return found


class _Model:
    """The program in the solver."""

    def __init__(self, program: GangProgram, cells: list[Cell]) -> None:
        self._solver: Any = _highs.Highs()
        self._solver.silent()
        for option, value in (
            ("threads", 1),
            ("random_seed", 0),
            ("mip_max_nodes", MAX_BRANCHES),
            ("simplex_iteration_limit", MAX_ITERATIONS),
        ):
            self._solver.setOptionValue(option, value)
        self._program = program
        self.tasks = {cell: self._solver.addIntegral(0, program.counts[cell[0]]) for cell in cells}
        self.nodes = {node: self._solver.addBinary() for node in {node for _, node in cells}}
        self.domains = {
            domain: self._solver.addBinary()
            for domain in dict.fromkeys(program.domains[node] for node in self.nodes)
        }
        self._add_amounts()
        self._add_conflicts()
        self._values: Any = ()

    def _add_amounts(self) -> None:
        program, require = self._program, self.require
        for kind, number in enumerate(program.counts):
            placed = [task for (k, _), task in self.tasks.items() if k == kind]
            if placed:
                require(sum(placed) <= number)
        for node, used in self.nodes.items():
            require(used <= self.domains[program.domains[node]])
            here = [(kind, task) for (kind, n), task in self.tasks.items() if n == node]
            for kind, task in here:
                require(task <= program.counts[kind] * used)
            for column in range(program.idle.shape[1]):
                idle = float(program.idle[node, column])
                asked = [(float(program.requests[kind, column]), task) for kind, task in here]
                # Fractions of what is idle: bytes and CPUs have comparable coefficients.
                terms = [amount / (idle or 1.0) * task for amount, task in asked if amount]
                if terms:
                    require(sum(terms) <= (used if idle else 0.0 * used))

    def _add_conflicts(self) -> None:
        total = sum(self._program.counts)
        for cell, forbidden in self._program.conflicts.items():
            if cell not in self.tasks:
                continue
            others = [self.tasks[each] for each in sorted(forbidden - {cell}) if each in self.tasks]
            if cell in forbidden:
                self.require(self.tasks[cell] <= 1)
            if others:
                occupied = self._solver.addBinary()
                self.require(self.tasks[cell] <= total * occupied)
                self.require(sum(others) <= total * (1 - occupied))

    def require(self, constraint: Any) -> None:
        self._solver.addConstr(constraint)

    def accept_gap(self, gap: float) -> None:
        """Let later searches end at this relative difference from their bound."""
        self._solver.setOptionValue("mip_rel_gap", gap)

    def maximize(self, objective: Any) -> dict[Cell, int] | None:
        self._solver.maximize(objective)
        return self._solution()

    def minimize(self, objective: Any) -> dict[Cell, int] | None:
        self._solver.minimize(objective)
        return self._solution()

    def used(self, uses: Mapping[int, Any]) -> int:
        """How many of these binaries the last solution sets."""
        return sum(round(self._values[use.index]) for use in uses.values())

    def _solution(self) -> dict[Cell, int] | None:
        info = self._solver.getInfo()
        if info.primal_solution_status != _highs.SolutionStatus.kSolutionStatusFeasible:
            return None
        self._values = self._solver.getSolution().col_value
        found = {cell: round(self._values[task.index]) for cell, task in self.tasks.items()}
        return {cell: number for cell, number in found.items() if number > _TOLERANCE}
