"""The rows of the index that stay in its file until a question needs them: placements, profiles and
circuits, timelines, and the end of the last verification."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any, Final, NamedTuple

import msgspec

from asched.audit.timeline_log import PodPart, TimelinePart
from asched.ui.index_tables import PUT
from asched.ui.placements import LASTS, PlacementHistory, StoredPlacement
from asched.ui.plugin_history import PluginHistory

_WORDS: Final = (
    b"podUpdated pod was changed node conditions (none) -> PodScheduled=False phase Pending"
    b" Running Succeeded label rejected by NodeResourcesFit its backoff expired timeout"
    b" event assigned attempt feasibleNodes evaluatedNodes score ties permitWaits devices"
    b" event rejected message unschedulablePlugins pendingPlugins nominatedNode victims"
    b" releasedClaim 0/ nodes are available: Insufficient cpu memory preemption"
    b" event deleted event bound node event changed changes node (none) -> "
    b" event observed schedulerName default-scheduler priority node gates"
    b" event queued seq at queue active unschedulable before cause it was observed 2026-"
)
"""What entries have in common: each row is compressed on its own."""
_LEVEL: Final = 1


class SavedParts(NamedTuple):
    """What is saved with the index."""

    placements: PlacementHistory
    plugins: PluginHistory
    timelines: Iterable[TimelinePart]


class HistoryTables:
    """Reads and writes the rows. The owner of the connection begins and ends transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._saved_forms = 0

    # -- reading ----------------------------------------------------------------------------------

    def restored_placements(self) -> PlacementHistory:
        history = PlacementHistory(self.placements)
        forms = [
            form
            for (form,) in self._connection.execute("SELECT form FROM placed_form ORDER BY number")
        ]
        lasting = self._connection.execute("SELECT * FROM placement WHERE end_seq = ?", (LASTS,))
        history.restore(forms, starmap(StoredPlacement, lasting))
        self._saved_forms = len(forms)
        return history

    def placements(self, node: str, seq: int) -> Iterator[StoredPlacement]:
        """The stored placements on a node that include a record."""
        rows = self._connection.execute(
            "SELECT * FROM placement WHERE node = ? AND begin_seq <= ? AND end_seq > ?",
            (node, seq, seq),
        )
        return starmap(StoredPlacement, rows)

    def plugin_facts(self, kind: str, seq: int) -> bytes | None:
        """The last stored form of a kind up to a record."""
        rows = self._connection.execute(
            "SELECT form FROM plugin_facts WHERE kind = ? AND seq <= ? ORDER BY seq DESC LIMIT 1",
            (kind, seq),
        )
        row = rows.fetchone()
        return None if row is None else row[0]

    def timeline(self, key: str, last_seq: int) -> list[PodPart]:
        """The stored entries of a key, in parts that begin at or before a record."""
        rows = self._connection.execute(
            "SELECT form FROM timeline WHERE key = ? AND seq <= ? ORDER BY seq", (key, last_seq)
        )
        return [part for (form,) in rows for part in _PARTS.decode(_expanded(form))]

    def verified(self) -> bytes | None:
        row = self._connection.execute("SELECT form FROM verified").fetchone()
        return None if row is None else row[0]

    # -- writing ----------------------------------------------------------------------------------

    def save(self, saved: SavedParts) -> None:
        """Add what is not stored."""
        placements, plugins = saved.placements, saved.plugins
        self._put("placement", placements.unsaved())
        new = placements.forms[self._saved_forms :]
        self._put("placed_form", enumerate(new, self._saved_forms))
        self._put("plugin_facts", plugins.unsaved)
        encode = msgspec.msgpack.Encoder().encode
        parts = ((one.key, one.first_seq, _compressed(encode(one.pods))) for one in saved.timelines)
        self._put("timeline", parts)
        self._saved_forms = len(placements.forms)

    def save_verified(self, form: bytes) -> None:
        with self._connection:
            self._put("verified", [(1, form)])

    def _put(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._connection.executemany(PUT[table], rows)


_PARTS: Final = msgspec.msgpack.Decoder(list[PodPart])


def _compressed(data: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zdict=_WORDS)
    return compressor.compress(data) + compressor.flush()


def _expanded(data: bytes) -> bytes:
    return zlib.decompressobj(zdict=_WORDS).decompress(data)
