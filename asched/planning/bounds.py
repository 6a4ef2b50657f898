"""Bounds on what any scheduler could reach, by mixed-integer programming (HiGHS).

The program has an integer for the nodes of each kind in use and one for the pods of each kind on
them. Nodes of a kind count together: their pods request at most the sum of what the nodes have, and
of one kind of pods at most as many as fit on each node alone. This relaxes the packing of single
nodes, so its optimum is a bound. The solver proves a bound of the program itself at any time
limit; the gap is between that bound and the best solution that it found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from asched.planning.errors import ExecutionError, PlanningError
from asched.planning.packing import PackingProblem

DEFAULT_LIMIT_S: Final = 30.0
_TOLERANCE: Final = 1e-6
"""The solver's values are exact to about 1e-9; a bound is rounded to the safe side."""


class ProvenBound(msgspec.Struct, frozen=True, rename="camel"):
    """A proven limit."""

    value: int
    """No scheduler reaches more (or less, of a minimum)."""
    gap: float
    """(best solution of the program - bound) / best solution: 0 if the program was solved."""


class ProvenCost(msgspec.Struct, frozen=True, rename="camel"):
    """A proven limit of a price by the hour."""

    value: float
    """No scheduler gets along with less."""
    gap: float
    """As :attr:`ProvenBound.gap`."""


class _Model(NamedTuple):
    """The program; ``pods[k, n]`` is None where pods of kind k may not run."""

    solver: Any
    nodes: list[Any]
    pods: dict[tuple[int, int], Any]


def least_nodes(problem: PackingProblem, limit_s: float = DEFAULT_LIMIT_S) -> ProvenBound | None:
    """The least number of nodes on which all pods run; None if they cannot all run at once.

    Raises PlanningError without highspy (``asched[bounds]``), ExecutionError if nothing is proven
    within the limit.
    """

    found = _solved(problem, limit_s, lambda model: _all_placed(problem, model, None), least=True)
    return None if found is None else _rounded(found, least=True)


def least_cost(problem: PackingProblem, limit_s: float = DEFAULT_LIMIT_S) -> ProvenCost | None:
    """The least price of nodes on which all pods run; None if they cannot all run at once.

    Raises as :func:`least_nodes`.
    """
    prices = [kind.per_hour for kind in problem.nodes]
    # Coefficients of at most 1: the tolerances of the solver are absolute.
    unit = max(prices, default=0.0) or 1.0
    weights = [price / unit for price in prices]
    found = _solved(
        problem, limit_s, lambda model: _all_placed(problem, model, weights), least=True
    )
    if found is None:
        return None
    safe = max(0.0, found.bound - _TOLERANCE)
    return ProvenCost(safe * unit, _gap(found.solution, found.bound))


def _all_placed(problem: PackingProblem, model: _Model, weights: Sequence[float] | None) -> Any:
    """The number of nodes in use, or their weight, with all pods placed; None if that is
    impossible."""
    for number, kind in enumerate(problem.pods):
        placed = [pods for (k, _), pods in model.pods.items() if k == number]
        if not placed:
            return None
        model.solver.addConstr(sum(placed) == kind.number)
    if weights is None:
        return sum(model.nodes)
    return sum(weight * nodes for weight, nodes in zip(weights, model.nodes, strict=True))


def most_pods(problem: PackingProblem, limit_s: float = DEFAULT_LIMIT_S) -> ProvenBound:
    """The greatest number of pods that run at once. Raises as :func:`least_nodes`."""
    return _most(problem, limit_s, np.ones(len(problem.pods), np.int64))


def most_of(
    problem: PackingProblem, resource: str, limit_s: float = DEFAULT_LIMIT_S
) -> ProvenBound:
    """The greatest amount of a resource that can be allocated to these pods at once, in the unit of
    :mod:`asched.model.requests`. Raises as :func:`least_nodes`."""
    column = problem.resources.index(resource)
    return _most(problem, limit_s, np.array([kind.requests[column] for kind in problem.pods]))


def _most(problem: PackingProblem, limit_s: float, worth: Any) -> ProvenBound:
    unit = int(np.gcd.reduce(worth)) or 1

    def build(model: _Model) -> Any:
        for number, kind in enumerate(problem.pods):
            placed = [pods for (k, _), pods in model.pods.items() if k == number]
            if placed:
                model.solver.addConstr(sum(placed) <= kind.number)
        return sum(int(worth[k] // unit) * pods for (k, _), pods in model.pods.items())

    found = _solved(problem, limit_s, build, least=False)
    if found is None:
        return ProvenBound(0, 0.0)
    rounded = _rounded(found, least=False)
    return msgspec.structs.replace(rounded, value=rounded.value * unit)


class _Solved(NamedTuple):
    """The answer of the solver."""

    bound: float
    solution: float
    """The best one that it found; infinite for none."""


def _rounded(found: _Solved, *, least: bool) -> ProvenBound:
    """The bound of a whole number."""
    round_up = math.ceil(found.bound - _TOLERANCE)
    value = round_up if least else math.floor(found.bound + _TOLERANCE)
    return ProvenBound(value, _gap(found.solution, value))


def _gap(solution: float, bound: float) -> float:
    if not math.isfinite(solution):
        return 1.0
    gap = abs(solution - bound) / abs(solution) if solution else 0.0
    return 0.0 if gap < 2 * _TOLERANCE else round(gap, 6)


def _solved(
    problem: PackingProblem, limit_s: float, build: Callable[[_Model], Any], *, least: bool
) -> _Solved | None:
    """None if the program has no solution."""
    if not problem.pods or not problem.nodes:
        return _Solved(0.0, 0.0) if not problem.pods else None
    highspy = _highspy()
    model = _model(problem, highspy)
    objective = build(model)
    if objective is None or not model.pods:
        return None
    solver = model.solver
    solver.setOptionValue("time_limit", limit_s)
    (solver.minimize if least else solver.maximize)(objective)
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    bound = info.mip_dual_bound
    if not math.isfinite(bound):
        raise ExecutionError(f"the solver proved nothing within {limit_s:g} s; give it more time")
    return _Solved(bound, info.objective_function_value)


def _model(problem: PackingProblem, highspy: Any) -> _Model:
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    nodes = [solver.addIntegral(0, len(kind.names)) for kind in problem.nodes]
    pods: dict[tuple[int, int], Any] = {}
    for k, kind in enumerate(problem.pods):
        for n in kind.node_kinds:
            each = problem.most_on_one(kind, problem.nodes[n])
            if each:
                pods[k, n] = solver.addIntegral(0, kind.number)
                solver.addConstr(pods[k, n] <= each * nodes[n])
    for n, node in enumerate(problem.nodes):
        on_kind = [(problem.pods[k].requests, pods[k, n]) for k, m in pods if m == n]
        for column in range(len(problem.resources)):
            asked = [(int(requests[column]), count) for requests, count in on_kind]
            # Fractions of a node: amounts of bytes and of pods have comparable coefficients.
            whole = max(int(node.allocatable[column]), 1)
            terms = [amount / whole * count for amount, count in asked if amount]
            if terms:
                solver.addConstr(sum(terms) <= nodes[n])
    return _Model(solver, nodes, pods)


def _highspy() -> Any:
    try:
        import highspy
    except ModuleNotFoundError:
        raise PlanningError("bounds need highspy: pip install 'asched[bounds]'") from None
    return highspy
