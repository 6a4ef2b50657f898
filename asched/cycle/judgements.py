"""What row-scope plugins say of nodes by how full they are, as most nodes fill up alike."""

from __future__ import annotations

from asched.framework.status import Status
from asched.state.node_table import NodeTable

_MOST_JUDGEMENTS = 4096

Refusal = tuple[int, Status]
"""The first row filter that refuses, by its rank, and its status."""


class Judgement:
    """What is said of nodes that are equally full. Filled in as it is asked for."""

    __slots__ = ("filtered", "refusal", "scored", "scores", "total")

    def __init__(self) -> None:
        self.filtered = False
        """Whether the row filters were asked; only then :attr:`refusal` says anything."""
        self.refusal: Refusal | None = None
        self.scored = False
        """Whether the row scorers were asked."""
        self.scores: tuple[int, ...] = ()
        """What each of them says."""
        self.total: int | None = None
        """The weighted sum of :attr:`scores`, where nobody normalises them and all are in range."""


class Judgements:
    """By the table's number for how full a node is. Memory, not state."""

    __slots__ = ("_known", "_table")

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._known: dict[int, Judgement] = {}

    def of(self, row: int) -> Judgement:
        """The judgement on nodes as full as that of the row is now."""
        fullness = self._table.fullness_on(row)
        known = self._known.get(fullness)
        if known is None:
            if len(self._known) == _MOST_JUDGEMENTS:
                self._known.clear()
            known = self._known[fullness] = Judgement()
        return known

    def forget(self) -> None:
        """Other scorers are asked from here on."""
        self._known.clear()
