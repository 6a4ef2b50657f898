"""Nodes of an explained attempt as tables: scores of feasible ones, reasons of rejected ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from asched.cli.output import breaks_words, print_table, print_text

if TYPE_CHECKING:
    from asched.audit.explanation import Explanation, NodeExplanation, NodeRejection

_RANKS: Final = 5
"""Rows of feasible nodes, each with equal scores."""
_REJECTIONS: Final = 15
"""Rows of rejected nodes, each with equal rejections."""
_EXAMPLES: Final = 2
"""Nodes named in such a row."""


def rejection_text(rejection: NodeRejection) -> str:
    return f"{rejection.plugin}: {', '.join(rejection.reasons)} ({rejection.code})"


def print_nodes(found: Explanation, *, every: bool = False) -> None:
    """Print the ranked nodes, and those that are rejected: nodes of equal scores or rejections
    together, with ``every`` one by one."""
    feasible = [node for node in found.nodes if node.feasible]
    rejected = [node for node in found.nodes if not node.feasible]
    if feasible and every:
        _print_scores(("RANK", "NODE", "TOTAL"), [[node] for node in feasible], found.decision.node)
    elif feasible:
        _print_ranked(feasible, found.decision.node)
    if rejected and every:
        print_table(("NODE", "REJECTED BY"), [(node.name, _rejections(node)) for node in rejected])
    elif rejected:
        _print_rejected(rejected)


def _print_rejected(rejected: Sequence[NodeExplanation]) -> None:
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for node in rejected:
        alike[_rejections(node)].append(node.name)
    most_first = sorted(alike.items(), key=lambda one: -len(one[1]))
    rows = [(len(names), _examples(names), why) for why, names in most_first[:_REJECTIONS]]
    print_table(("NODES", "NAMES", "REJECTED BY"), rows)
    if len(alike) > _REJECTIONS:
        print_text(f"... of {len(alike)} kinds of rejection; --all shows every node")


def _rejections(node: NodeExplanation) -> str:
    return "; ".join(map(rejection_text, node.rejected_by))


def _examples(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_EXAMPLES])
    return f"{shown}, ..." if len(names) > _EXAMPLES else shown


def _print_ranked(nodes: Sequence[NodeExplanation], chosen: str) -> None:
    alike: defaultdict[object, list[NodeExplanation]] = defaultdict(list)
    for node in nodes:
        alike[node.rank, tuple(score.weighted for score in node.scores)].append(node)
    groups = [
        group
        for position, group in enumerate(alike.values())
        if position < _RANKS or any(node.name == chosen for node in group)
    ]
    _print_scores(("RANK", "NODES", "NAMES", "TOTAL"), groups, chosen)
    if len(nodes) > sum(min(len(group), _EXAMPLES) for group in groups):
        print_text(f"... of {len(nodes)}; --all shows all, --node NODE the details of one")


def _print_scores(
    heads: Sequence[str], groups: Sequence[Sequence[NodeExplanation]], chosen: str
) -> None:
    """A row for each group of nodes with equal scores; with its size if there are four heads."""
    firsts = [group[0] for group in groups]
    sizes = [[len(group)] if len(heads) == 4 else [] for group in groups]
    names = [_names(group, chosen) for group in groups]
    begins = [
        (first.rank, *size, name, first.total)
        for first, size, name in zip(firsts, sizes, names, strict=True)
    ]
    columns = (*heads, *(f"{score.plugin} x{score.weight}" for score in firsts[0].scores))
    numbers = [[score.weighted for score in first.scores] for first in firsts]
    rows: list[Sequence[object]] = [(*a, *b) for a, b in zip(begins, numbers, strict=True)]
    if breaks_words(columns, rows):
        columns = (*heads, "WEIGHTED SCORES, IF NOT 0")
        lists = [
            ", ".join(
                f"{score.plugin} {score.weighted}" for score in first.scores if score.weighted
            )
            for first in firsts
        ]
        rows = [(*begin, scores) for begin, scores in zip(begins, lists, strict=True)]
    print_table(columns, rows)


def _names(group: Sequence[NodeExplanation], chosen: str) -> str:
    """Examples of the names, the chosen node marked and first."""
    others = [node.name for node in group if node.name != chosen]
    return _examples([f"{chosen} <-", *others] if len(others) < len(group) else others)


def print_node(node: NodeExplanation) -> None:
    if not node.feasible:
        print_table(
            ("PLUGIN", "CODE", f"REJECTS {node.name} BECAUSE"),
            [(r.plugin, r.code, ", ".join(r.reasons)) for r in node.rejected_by],
        )
        _print_requests(node)
        return
    print_table(
        ("PLUGIN", "RAW", "NORMALIZED", "WEIGHT", "WEIGHTED"),
        [(s.plugin, s.raw, s.normalized, s.weight, s.weighted) for s in node.scores],
        title=f"{node.name}: total {node.total}, rank {node.rank}",
    )


def _print_requests(node: NodeExplanation) -> None:
    for problem in node.device_problems:
        print_text(problem)
    rows = [
        (
            request.claim,
            request.request,
            "all" if request.wanted is None else request.wanted,
            f"{request.suitable} of {request.considered}",
            ", ".join(f"{count} {reason}" for reason, count in request.refused.items()),
            ", ".join(request.users),
        )
        for request in node.requests
    ]
    if rows:
        columns = ("CLAIM", "REQUEST", "NEEDS", "SUITABLE DEVICES", "REFUSED", "IN USE BY")
        print_table(columns, rows)
