"""The file that keeps the index of a journal between starts.

The file may be deleted at any time. One process extends it; others work on a copy of their own. A
file of another journal, of another version or a damaged one is replaced.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from filelock import lock_descriptor, unlock_descriptor

from asched.pricing.prices import Prices
from asched.ui.columns import ClusterHistory
from asched.ui.device_history import DeviceUses, StoredDevices
from asched.ui.history_tables import HistoryTables, SavedParts
from asched.ui.index import IndexedGroup, IndexedPod, JournalIndex
from asched.ui.index_tables import COUNT, DELETE, PUT, TABLES, VERSION
from asched.ui.indexes import Indexes
from asched.ui.logs import FollowedLogs, FollowedLogsForm
from asched.ui.node_facts import NodeFacts, StoredFacts
from asched.ui.placements import PlacementHistory
from asched.ui.plugin_history import PluginHistory
from asched.ui.series import Bucket, BucketForm

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

StorageError = sqlite3.Error
"""What the files raise when they cannot be read or written."""
DAMAGE: Final = (sqlite3.Error, msgspec.MsgspecError, zlib.error, ValueError, LookupError)
"""What reading a damaged file raises."""
_GROUPS: Final = ("owners", "gangs", "likes")


class IndexMark(NamedTuple):
    """What a stored index was built from."""

    seq: int = 0
    """The last record that is indexed."""
    batch: int = 0
    """A batch at or after that record, and its hash."""
    hash: str = ""


class _MarkForm(msgspec.Struct, array_like=True):
    """The parts of the index that are small."""

    journal_id: str
    mark: IndexMark
    first_at_ns: int
    nodes: dict[str, int]
    plugin_failures: dict[str, int]
    totals: dict[str, int]
    namespaces: frozenset[str]
    step_s: int
    blocked: dict[str, tuple[str, ...]]
    sizes: dict[str, int]
    """The number of rows by table."""


class _PodForm(msgspec.Struct, array_like=True):
    namespace: str
    uid: str
    like: str
    owners: tuple[str, ...]
    gang: str
    last_seq: int
    pending_since_ns: int
    first_seq: int


class _GroupForm(msgspec.Struct, array_like=True):
    namespace: str
    name: str
    last_seq: int
    waits: dict[int, int]


class IndexFile:
    """An open file. All methods can raise :data:`DAMAGE`."""

    prices: Prices | None = None
    """Adds costs to the logs of an index that is loaded or begun."""

    def __init__(self, connection: sqlite3.Connection, journal_id: str, lock: int | None) -> None:
        self._connection = connection
        self.journal_id = journal_id
        self._lock = lock
        self.states: Path | None = None
        """Where checkpoints of the index are kept; None in a temporary file."""
        self.history = HistoryTables(connection)
        self._saved = IndexMark()
        self._saved_nodes = 0
        self._saved_step_s = 0
        self._saved_bucket_s = -1

    @property
    def shared(self) -> bool:
        """Whether later starts find what is saved here."""
        return self._lock is not None

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            unlock_descriptor(self._lock)
            os.close(self._lock)
            self._lock = None

    def clear(self) -> None:
        """Start over."""
        with self._connection:
            for statement in DELETE.values():
                self._connection.execute(statement)
        self.history = HistoryTables(self._connection)
        self._saved, self._saved_nodes = IndexMark(), 0
        self._saved_step_s, self._saved_bucket_s = 0, -1

    def empty(self) -> Indexes:
        """Indexes that are stored here."""
        history = self.history
        return Indexes(
            cluster=ClusterHistory(self.load_chunk),
            logs=FollowedLogs(prices=self.prices),
            placements=PlacementHistory(history.placements),
            plugins=PluginHistory(history.plugin_facts),
        )

    # -- reading ----------------------------------------------------------------------------------

    def mark(self) -> IndexMark:
        """Where the stored index ends; the beginning if nothing is stored.

        Raises ValueError for an index of another journal.
        """
        form = self._form()
        if form is None:
            return IndexMark()
        if form.journal_id != self.journal_id:
            raise ValueError(f"it is of journal {form.journal_id}")
        return form.mark

    def _form(self) -> _MarkForm | None:
        row = self._connection.execute("SELECT form FROM mark").fetchone()
        return None if row is None else msgspec.msgpack.decode(row[0], type=_MarkForm)

    def load(self) -> tuple[Indexes, int]:
        """The stored index, and the time of the journal's first record."""
        form = self._form()
        assert form is not None, "mark() is not the beginning"
        if form.sizes != self._sizes():
            raise ValueError("rows are missing")
        found = self.empty()
        self._load_names(found.names, form)
        kept = self._connection.execute("SELECT name FROM node_name ORDER BY number").fetchall()
        bases = self._connection.execute("SELECT base_seq FROM chunk ORDER BY base_seq").fetchall()
        found.cluster.restore([name for (name,) in kept], [seq for (seq,) in bases], form.mark.seq)
        decode_facts = msgspec.msgpack.Decoder(NodeFacts | None).decode
        for seq, name, blob in self._connection.execute("SELECT * FROM node_facts ORDER BY seq"):
            found.facts.add(StoredFacts(seq, name, decode_facts(blob)))
        self._load_devices(found)
        self._saved, self._saved_nodes = form.mark, len(kept)
        found.logs = self._load_logs()
        found.placements = self.history.restored_placements()
        return found, form.first_at_ns

    def _load_devices(self, found: Indexes) -> None:
        decode = msgspec.msgpack.Decoder(DeviceUses).decode
        # Few nodes differ in their devices.
        known: dict[bytes, DeviceUses] = {}
        for seq, name, blob in self._connection.execute("SELECT * FROM node_devices ORDER BY seq"):
            uses = known.get(blob)
            if uses is None:
                uses = known[blob] = decode(blob)
            found.devices.add(StoredDevices(seq, name, uses))

    def _load_logs(self) -> FollowedLogs:
        (blob,) = self._connection.execute("SELECT form FROM logs").fetchone()
        return FollowedLogs(msgspec.msgpack.decode(blob, type=FollowedLogsForm), self.prices)

    def _load_names(self, index: JournalIndex, form: _MarkForm) -> None:
        index.nodes.update(form.nodes)
        index.plugin_failures.update(form.plugin_failures)
        index.totals.update(form.totals)
        index.namespaces = form.namespaces
        decode_group = msgspec.msgpack.Decoder(_GroupForm).decode
        for kind, key, blob in self._connection.execute("SELECT * FROM pod_group"):
            found = decode_group(blob)
            group = IndexedGroup(found.namespace, found.name, last_seq=found.last_seq)
            group.waits.classes.update(found.waits)
            getattr(index, kind)[key] = group
        decode_pod = msgspec.msgpack.Decoder(_PodForm).decode
        for key, blob in self._connection.execute("SELECT * FROM pod"):
            pod = decode_pod(blob)
            restored = IndexedPod(key, intern(pod.namespace), pod.uid)
            restored.like, restored.owners, restored.gang = pod.like, pod.owners, pod.gang
            restored.last_seq, restored.pending_since_ns = pod.last_seq, pod.pending_since_ns
            restored.first_seq = pod.first_seq
            index.restore_pod(restored)
        series = index.series
        series.step_s = self._saved_step_s = form.step_s
        decode_bucket = msgspec.msgpack.Decoder(BucketForm).decode
        for start_s, blob in self._connection.execute("SELECT * FROM bucket ORDER BY start_s"):
            series.buckets.append(Bucket.restore(start_s, decode_bucket(blob)))
            self._saved_bucket_s = start_s
        for key, plugins in form.blocked.items():
            series.block(key, plugins)

    def _sizes(self) -> dict[str, int]:
        return {
            table: self._connection.execute(statement).fetchone()[0]
            for table, statement in COUNT.items()
        }

    def load_chunk(self, base_seq: int) -> bytes:
        row = self._connection.execute("SELECT form FROM chunk WHERE base_seq = ?", (base_seq,))
        blob: bytes = row.fetchone()[0]
        return blob

    # -- writing ----------------------------------------------------------------------------------

    def save(self, indexes: Indexes, mark: IndexMark, first_at_ns: int) -> None:
        """Add what changed since the last call, in one transaction.

        The columns of the cluster end with record ``mark.seq``.
        """
        encode, names = msgspec.msgpack.encode, indexes.names
        form = _MarkForm(
            journal_id=self.journal_id,
            mark=mark,
            first_at_ns=first_at_ns,
            nodes=names.nodes,
            plugin_failures=names.plugin_failures,
            totals=dict(names.totals),
            namespaces=names.namespaces,
            step_s=names.series.step_s,
            blocked=names.series.blocked,
            sizes={},
        )
        with self._connection:
            self._save_names(names)
            self._save_buckets(names)
            self._put("chunk", indexes.cluster.take_closed())
            new = indexes.cluster.names[self._saved_nodes :]
            self._put("node_name", enumerate(new, self._saved_nodes))
            facts = indexes.facts.unsaved
            self._put("node_facts", ((one.seq, one.name, encode(one.facts)) for one in facts))
            devices = indexes.devices.unsaved
            self._put("node_devices", ((one.seq, one.node, encode(one.uses)) for one in devices))
            self._put("logs", [(1, encode(indexes.logs.form))])
            timelines = indexes.taken_timelines()
            self.history.save(SavedParts(indexes.placements, indexes.plugins, timelines))
            form.sizes = self._sizes()
            self._put("mark", [(1, encode(form))])
        self._saved, self._saved_nodes = mark, len(indexes.cluster.names)
        indexes.facts.unsaved.clear()
        indexes.devices.unsaved.clear()
        indexes.placements.saved()
        indexes.plugins.unsaved.clear()

    def _save_names(self, index: JournalIndex) -> None:
        encode, after = msgspec.msgpack.encode, self._saved.seq
        changed = [(key, pod) for key, pod in index.pods.items() if pod.last_seq > after]
        forms = ((key, _PodForm(*(getattr(pod, f) for f in _POD_FIELDS))) for key, pod in changed)
        self._put("pod", ((key, encode(form)) for key, form in forms))
        dirty = {
            "owners": dict.fromkeys(owner for _, pod in changed for owner in pod.owners),
            "gangs": dict.fromkeys(pod.gang for _, pod in changed if pod.gang),
            "likes": dict.fromkeys(pod.like for _, pod in changed),
        }
        for kind in _GROUPS:
            groups: dict[str, IndexedGroup] = getattr(index, kind)
            found = ((key, groups[key]) for key in dirty[kind])
            self._put("pod_group", ((kind, key, encode(_group_form(one))) for key, one in found))

    def _save_buckets(self, index: JournalIndex) -> None:
        series = index.series
        if series.step_s != self._saved_step_s:
            self._connection.execute("DELETE FROM bucket")
            self._saved_bucket_s = -1
        changed = [b for b in series.buckets[-_RECENT:] if b.start_s >= self._saved_bucket_s]
        if self._saved_bucket_s < 0 or len(changed) == _RECENT:
            changed = [b for b in series.buckets if b.start_s >= self._saved_bucket_s]
        self._put("bucket", ((b.start_s, msgspec.msgpack.encode(b.form())) for b in changed))
        self._saved_step_s = series.step_s
        if series.buckets:
            self._saved_bucket_s = series.buckets[-1].start_s

    def _put(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._connection.executemany(PUT[table], rows)


_POD_FIELDS: Final = _PodForm.__struct_fields__
_RECENT: Final = 64


def _group_form(group: IndexedGroup) -> _GroupForm:
    return _GroupForm(group.namespace, group.name, group.last_seq, dict(group.waits.classes))


def open_index(folder: Path | None, journal_id: str) -> IndexFile:
    """The stored index of a journal, or an empty one in a temporary file.

    A folder that cannot be used is logged in one line.
    """
    if folder is not None and journal_id:
        path = folder / f"{journal_id}.index"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = _open_shared(path, journal_id)
            if found.shared:
                found.states = folder / f"{journal_id}.states"
            return found
        except OSError as error:
            log.warning("index not saved", file=str(path), reason=error.strerror or str(error))
    return IndexFile(_temporary(), journal_id, None)


def _open_shared(path: Path, journal_id: str) -> IndexFile:
    """Raises OSError."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        owned = lock_descriptor(lock, blocking=False)
    except BaseException:
        os.close(lock)
        raise
    if not owned:
        os.close(lock)
        return _checked_copy(path, journal_id)
    index = _checked(path, journal_id, lock)
    if index is None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        index = IndexFile(_connected(path), journal_id, lock)
    return index


def _checked(path: Path, journal_id: str, lock: int) -> IndexFile | None:
    """The file if it can be used."""
    connection = None
    try:
        connection = _connected(path)
        index = IndexFile(connection, journal_id, lock)
        index.mark()
        return index
    except DAMAGE as error:
        log.warning("index discarded", file=str(path), reason=str(error))
        if connection is not None:
            connection.close()
        return None


def _connected(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error, OSError, ValueError for another version."""
    # It names pods: no other user may read it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise ValueError(f"it has version {version}, this asched uses {VERSION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.executescript(TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def _temporary() -> sqlite3.Connection:
    """An empty database that no other process sees."""
    connection = sqlite3.connect("", check_same_thread=False)
    connection.executescript(TABLES)
    return connection


def _checked_copy(path: Path, journal_id: str) -> IndexFile:
    """A copy of a file that another process extends; empty if it cannot be read."""
    target = _temporary()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            (version,) = source.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                raise ValueError(f"it has version {version}, this asched uses {VERSION}")
            source.backup(target)
        index = IndexFile(target, journal_id, None)
        index.mark()
        return index
    except DAMAGE as error:
        log.warning("index rebuilt", file=str(path), reason=str(error))
        target.close()
        return IndexFile(_temporary(), journal_id, None)
