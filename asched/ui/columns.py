"""The use of all nodes after any record, without a fold: columns at a grid, and changes in between.

:class:`ClusterHistory` follows the fold record by record. A chunk holds the columns before its
first record and every later change of a row. The picture after a record is the columns of its chunk
with the changes up to that record, so it equals the one of the fold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple
from zlib import compress, decompress

import msgspec
import numpy as np
from numpy.typing import NDArray

from asched.model.requests import PODS
from asched.state.cluster import ClusterState
from asched.state.node_table import NodeTable

CHUNK_RECORDS: Final = 16_384
_CACHED_BYTES: Final = 6 * 1024**2
"""Of decoded chunks."""
QUEUES: Final = ("active", "backoff", "unschedulable", "gated")
_GONE: Final = -1

Ints = NDArray[np.int64]


class Chunk(NamedTuple):
    """The rows of some records. Arrays are read-only."""

    base_seq: int
    """The record with the state that is the base."""
    last_seq: int
    resources: tuple[str, ...]
    """The columns of values; the last is the number of pods."""
    base_nodes: Ints
    base_values: Ints
    """A row for each of :attr:`base_nodes`."""
    seqs: Ints
    """The record of each change, ascending."""
    nodes: Ints
    values: Ints
    """A row for each change: the values after it, :data:`_GONE` for a deleted node."""
    turns: Ints
    """``seq, date, active, backoff, unschedulable, gated`` whenever one of the last five changes;
    the first row is the base."""

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self if isinstance(array, np.ndarray))


class ChunkForm(msgspec.Struct, array_like=True):
    """How a chunk is stored."""

    base_seq: int
    last_seq: int
    resources: tuple[str, ...]
    arrays: tuple[bytes, ...]
    """Compressed."""


class RecordedColumns(NamedTuple):
    """All nodes after a record."""

    resources: tuple[str, ...]
    names: list[str]
    values: Ints
    """A row for each name."""
    date_ns: int
    queues: tuple[int, int, int, int]
    """By :data:`QUEUES`."""

    def amounts_of(self, name: str) -> list[int]:
        """Of one node, by resource."""
        amounts: list[int] = self.values[self.names.index(name)].tolist()
        return amounts


class OutsideError(Exception):
    """The history does not hold a record."""


class _OpenChunk:
    """The chunk that grows."""

    def __init__(self, seq: int, state: ClusterState, numbers: list[int]) -> None:
        """``state`` is the one after record ``seq``, ``numbers`` the node of each row."""
        table = state.nodes
        self.base_seq = self.last_seq = seq
        self.resources = resources_of(table)
        rows = [row for row, name in enumerate(table.names) if name]
        self.base_nodes = np.array([numbers[row] for row in rows], np.int64)
        columns = [table.requested(name)[rows] for name in self.resources[:-1]]
        self.base_values = np.stack([*columns, table.pod_count[rows]], axis=1).astype(np.int64)
        self.seqs: list[int] = []
        self.nodes: list[int] = []
        self.values: list[list[int]] = []
        self.turns: list[tuple[int, ...]] = [(seq, *_turn(state))]
        self._frozen: Chunk | None = None

    def change(self, seq: int, node: int, values: list[int]) -> None:
        self.seqs.append(seq)
        self.nodes.append(node)
        self.values.append(values)

    def end_record(self, seq: int, state: ClusterState) -> None:
        self.last_seq = seq
        self._frozen = None
        turn = _turn(state)
        if self.turns[-1][1:] != turn:
            self.turns.append((seq, *turn))

    def frozen(self) -> Chunk:
        if self._frozen is None:
            values = np.array(self.values, np.int64).reshape(len(self.seqs), len(self.resources))
            seqs, nodes = np.array(self.seqs, np.int64), np.array(self.nodes, np.int64)
            self._frozen = Chunk(
                base_seq=self.base_seq,
                last_seq=self.last_seq,
                resources=self.resources,
                base_nodes=self.base_nodes,
                base_values=self.base_values,
                seqs=seqs,
                nodes=nodes,
                values=values,
                turns=np.array(self.turns, np.int64),
            )
        return self._frozen


def resources_of(table: NodeTable) -> tuple[str, ...]:
    """What nodes offer; the number of pods is the last."""
    return (*(name for name in table.columns.allocatable if name != PODS), PODS)


def _turn(state: ClusterState) -> tuple[int, int, int, int, int]:
    queue = state.queue
    return (
        state.date_ns,
        len(queue.active),
        len(queue.backoff),
        len(queue.unschedulable),
        len(queue.gated),
    )


class ClusterHistory:
    """The columns of every record from the first that was followed."""

    def __init__(
        self, load: Callable[[int], bytes] | None = None, chunk_records: int = CHUNK_RECORDS
    ) -> None:
        """``load`` returns the stored chunk with a base."""
        self._chunk_records = chunk_records
        self.names: list[str] = []
        """Of all nodes ever, by number."""
        self.bases: list[int] = []
        """The record of each closed chunk's base."""
        self.unsaved: list[Chunk] = []
        """Closed chunks that :meth:`take_closed` did not return yet."""
        self._load = load
        self._numbers: dict[str, int] = {}
        self._rows: list[int] = []
        """The node of each row."""
        self._open: _OpenChunk | None = None
        self._closed_seq = -1
        """The last record of the closed chunks."""
        self._cursor = 0
        self._cached: OrderedDict[int, Chunk] = OrderedDict()
        self._cached_bytes = 0

    def restore(self, names: Iterable[str], bases: Iterable[int], last_seq: int) -> None:
        """Continue a stored history: the names by number, and the bases of its chunks."""
        for name in names:
            self._number(name)
        self.bases = [*bases]
        self._closed_seq = last_seq

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number

    # -- following --------------------------------------------------------------------------------

    def begin(self, seq: int, state: ClusterState) -> None:
        """Continue after record ``seq``; ``state`` is the one after it."""
        self._rows = [self._number(name) if name else -1 for name in state.nodes.names]
        self._cursor = state.nodes.cursor
        self._open = _OpenChunk(seq, state, self._rows)

    def apply(self, seq: int, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        chunk, table = self._open, state.nodes
        assert chunk is not None, "begin() comes first"
        if table.cursor != self._cursor:
            rows = table.changed_since(self._cursor)
            self._cursor = table.cursor
            if rows is None or chunk.resources != resources_of(table):
                self._close()
                self.begin(seq, state)
                return
            for row in rows:
                self._change(seq, table, row)
        chunk.end_record(seq, state)
        if seq - chunk.base_seq >= self._chunk_records:
            self.end(seq, state)

    def _change(self, seq: int, table: NodeTable, row: int) -> None:
        chunk = self._open
        assert chunk is not None, "begin() comes first"
        while len(self._rows) <= row:
            self._rows.append(-1)
        name = table.names[row]
        if name:
            self._rows[row] = self._number(name)
            chunk.change(seq, self._rows[row], _values(table, row, chunk.resources))
        elif self._rows[row] >= 0:
            chunk.change(seq, self._rows[row], [_GONE] * len(chunk.resources))
            self._rows[row] = -1

    def _close(self) -> None:
        chunk = self._open
        if chunk is not None and chunk.last_seq > self._closed_seq:
            self.bases.append(chunk.base_seq)
            self.unsaved.append(chunk.frozen())
            self._closed_seq = chunk.last_seq

    def end(self, seq: int, state: ClusterState) -> None:
        """Close the open chunk, so that everything up to record ``seq`` can be saved."""
        self._close()
        self.begin(seq, state)

    def take_closed(self) -> Iterator[tuple[int, bytes]]:
        """The closed chunks that are not saved yet, by the record of their base."""
        for chunk in self.unsaved:
            yield chunk.base_seq, _encoded(chunk)
            self._keep(chunk)
        self.unsaved.clear()

    # -- questions --------------------------------------------------------------------------------

    def date_ns(self, seq: int) -> int:
        """The time after a record. Raises :class:`OutsideError`."""
        return self._turn(self._chunk(seq), seq)[0]

    def _turn(self, chunk: Chunk, seq: int) -> list[int]:
        """The last turn's date and queues."""
        place = int(np.searchsorted(chunk.turns[:, 0], seq, "right")) - 1
        turn: list[int] = chunk.turns[place].tolist()
        return turn[1:]

    def at(self, seq: int) -> RecordedColumns:
        """All nodes after a record. Raises :class:`OutsideError`."""
        chunk = self._chunk(seq)
        until = int(np.searchsorted(chunk.seqs, seq, "right"))
        nodes = np.concatenate([chunk.base_nodes, chunk.nodes[:until]])
        values = np.concatenate([chunk.base_values, chunk.values[:until]])
        # The last change of a node counts: the first in reverse order.
        found, last = np.unique(nodes[::-1], return_index=True)
        values = values[::-1][last]
        there = values[:, -1] != _GONE
        date_ns, active, backoff, unschedulable, gated = self._turn(chunk, seq)
        queues = (active, backoff, unschedulable, gated)
        names = [self.names[number] for number in found[there].tolist()]
        return RecordedColumns(chunk.resources, names, values[there], date_ns, queues)

    def _chunk(self, seq: int) -> Chunk:
        if self._open is not None and seq > self._closed_seq:
            if not self._open.base_seq <= seq <= self._open.last_seq:
                raise OutsideError
            return self._open.frozen()
        place = bisect_right(self.bases, seq) - 1
        if place < 0:
            raise OutsideError
        base_seq = self.bases[place]
        for chunk in self.unsaved:
            if chunk.base_seq == base_seq:
                return chunk
        cached = self._cached.get(base_seq)
        if cached is not None:
            self._cached.move_to_end(base_seq)
            return cached
        if self._load is None:
            raise OutsideError
        chunk = _decoded(self._load(base_seq))
        if seq > chunk.last_seq:
            raise OutsideError
        self._keep(chunk)
        return chunk

    def _keep(self, chunk: Chunk) -> None:
        self._cached[chunk.base_seq] = chunk
        self._cached_bytes += chunk.size_bytes
        while self._cached_bytes > _CACHED_BYTES and len(self._cached) > 1:
            self._cached_bytes -= self._cached.popitem(last=False)[1].size_bytes


def _values(table: NodeTable, row: int, resources: tuple[str, ...]) -> list[int]:
    requested = [table.requested_on(row, name) for name in resources[:-1]]
    return [*requested, int(table.pod_count[row])]


_ARRAYS: Final = ("base_nodes", "base_values", "seqs", "nodes", "values", "turns")


def _encoded(chunk: Chunk) -> bytes:
    arrays = tuple(compress(_differences(getattr(chunk, name)), 1) for name in _ARRAYS)
    return msgspec.msgpack.encode(
        ChunkForm(chunk.base_seq, chunk.last_seq, chunk.resources, arrays)
    )


def _differences(array: Ints) -> bytes:
    """Differences of rows compress better."""
    return np.diff(array, axis=0, prepend=np.zeros_like(array[:1])).astype(np.int64).tobytes()


def _decoded(blob: bytes) -> Chunk:
    """Raises MsgspecError, zlib.error, ValueError for a damaged chunk."""
    form = msgspec.msgpack.decode(blob, type=ChunkForm)
    if len(form.arrays) != len(_ARRAYS):
        raise ValueError("it has other columns")
    flat = [np.frombuffer(decompress(part), np.int64) for part in form.arrays]
    width = len(form.resources)
    widths = {"base_values": width, "values": width, "turns": 2 + len(QUEUES)}
    arrays = [
        np.cumsum(part.reshape(-1, widths[name]) if name in widths else part, axis=0)
        for name, part in zip(_ARRAYS, flat, strict=True)
    ]
    fields = dict(zip(_ARRAYS, arrays, strict=True))
    return Chunk(form.base_seq, form.last_seq, form.resources, **fields)
