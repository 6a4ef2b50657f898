"""Encodes records to rows and back.

A payload is compact JSON (``sqlite3 journal.db 'select payload from journal_record' | jq``). It
omits what other columns hold: the record's type (``kind``), and a pod's key (the end of
``subject``). Each row has the version of its record's form. When the form of a record changes, an
upcaster per version step is added to :data:`UPCASTERS`. It converts older rows when they are read;
the stored rows are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from asched.journal.errors import VERIFY_ADVICE, NewerRecordError, RecordError
from asched.state.consolidation_records import ConsolidationDecided, ConsolidationEnded
from asched.state.group_records import PodGroupAttempted
from asched.state.records import AnyRecord, ClockStepped, ObjectDeleted, ObjectObserved
from asched.state.session_records import (
    PodGroupStatusDecided,
    PodGroupStatusWriteFailed,
    PodGroupStatusWritten,
    SessionExecuted,
)

RECORD_LIMIT_CHARACTERS: Final = 128 * 1024 * 1024
"""Limit for a payload. The largest are responses of extenders, up to 64 MiB."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Converts the raw JSON of version n of a kind to version n + 1."""

UPCASTERS: Mapping[str, Sequence[Upcaster]] = {}
"""Per kind, the steps from version 1. The current version is one more than their number."""

KINDS: Mapping[str, type[AnyRecord]] = {t.__name__: t for t in get_args(AnyRecord)}


class EncodedRecord(NamedTuple):
    """A record in its stored form, without a sequence number."""

    kind: str
    version: int
    subject: str
    payload: str


CLOCK_SUBJECT: Final = "clock"
"""The subject of steps of the clock: between two of them, dates increase."""


def object_subject(kind: str, key: str) -> str:
    """The subject of an object's records, such as ``pod/default/web-1`` or ``node/n1``."""
    return _storable(f"{kind.lower()}/{key}")


def session_subject(scheduler_name: str) -> str:
    """The subject of the batch sessions of a scheduler name."""
    return _storable(f"session/{scheduler_name}")


CONSOLIDATION_SUBJECT: Final = "consolidation"
"""The subject of the plans of ``asched consolidate``, and of what became of them."""


def _storable(subject: str) -> str:
    """Replace NUL, which PostgreSQL's text type cannot hold and only invalid names have."""
    return subject.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in subject else subject


def subject_of(record: AnyRecord) -> str:
    """The object that a record is about; empty for records about the engine."""
    if type(record) in _POD_RECORD_TYPES:  # the most frequent case
        return _storable(f"{_POD}/{record.key}")  # type: ignore[union-attr]
    if isinstance(record, ObjectObserved):
        return object_subject(type(record.object).__name__, record.object.key)
    if isinstance(record, ObjectDeleted):
        return object_subject(record.kind, record.key)
    if isinstance(
        record,
        PodGroupAttempted
        | PodGroupStatusDecided
        | PodGroupStatusWritten
        | PodGroupStatusWriteFailed,
    ):
        return object_subject(record.kind, record.group)
    if isinstance(record, SessionExecuted):
        return session_subject(record.scheduler_name)
    if isinstance(record, ClockStepped):
        return CLOCK_SUBJECT
    if isinstance(record, ConsolidationDecided | ConsolidationEnded):
        return CONSOLIDATION_SUBJECT
    return ""


_POD = "pod"
_POD_RECORD_TYPES = frozenset(
    kind for kind in KINDS.values() if kind is not ObjectDeleted and "key" in kind.__struct_fields__
)
"""Types of records with a pod's key: all types with a key except :class:`ObjectDeleted`."""
assert all(kind.__struct_fields__[0] == "key" for kind in _POD_RECORD_TYPES), (
    "the key of a pod must be a record's first field: its payload omits it"
)
_POD_RECORD_NAMES = frozenset(kind.__name__ for kind in _POD_RECORD_TYPES)


class Codec:
    """Encodes records, and decodes them with a registry of upcasters."""

    def __init__(self, upcasters: Mapping[str, Sequence[Upcaster]]) -> None:
        unknown = sorted(set(upcasters) - set(KINDS))
        if unknown:
            raise ValueError(f"upcasters for unknown kinds: {', '.join(unknown)}")
        self._upcasters = upcasters
        self.versions: Mapping[str, int] = {
            kind: 1 + len(upcasters.get(kind, ())) for kind in KINDS
        }
        """The current version of each kind."""
        self._encode = msgspec.json.Encoder().encode
        self._decoders: dict[str, msgspec.json.Decoder[AnyRecord]] = {}
        """Made when first used: a start with a new journal needs none."""

    def encode(self, record: AnyRecord) -> EncodedRecord:
        """The stored form of ``record`` in the current version of its kind."""
        kind, subject = type(record).__name__, subject_of(record)
        payload = self._encode(record).decode()
        return EncodedRecord(
            kind, self.versions[kind], subject, _without_redundancy(kind, subject, payload)
        )

    def decode(self, seq: int, kind: str, version: int, subject: str, payload: str) -> AnyRecord:
        """The stored record, upcast to the current version.

        Raises :class:`RecordError`, naming ``seq`` and ``kind``, for an unknown kind, a newer
        version, or a payload that does not fit the kind.
        """
        # SQLite stores a value of any type in any column.
        if (type(kind), type(version), type(subject), type(payload)) != _COLUMN_TYPES:
            raise RecordError(f"record {seq} has a column of a wrong type; {VERIFY_ADVICE}")
        current = self.versions.get(kind)
        if current is None:
            raise NewerRecordError(f"record {seq} is of unknown kind {kind!r}: upgrade asched")
        if len(payload) > RECORD_LIMIT_CHARACTERS:
            raise RecordError(
                f"record {seq} ({kind}) has {len(payload)} characters, which exceeds the limit"
            )
        payload = _with_key(kind, subject, payload)
        if version != current:
            payload = self._upcast(seq, kind, version, payload)
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(KINDS[kind])
        try:
            return decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise RecordError(
                f"record {seq} ({kind} v{version}) cannot be decoded: {error}; {VERIFY_ADVICE}"
            ) from None

    def _upcast(self, seq: int, kind: str, version: int, payload: str) -> str:
        current = self.versions[kind]
        if not 1 <= version < current:
            raise NewerRecordError(
                f"record {seq} ({kind}) has version {version}, this asched reads 1 to {current}:"
                " upgrade asched"
            )
        try:
            raw = msgspec.json.decode(payload, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise RecordError(
                f"record {seq} ({kind} v{version}) is not JSON: {error}; {VERIFY_ADVICE}"
            ) from None
        for number, step in enumerate(self._upcasters[kind][version - 1 :], version):
            try:
                raw = step(raw)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                # A step relies on the form it was written for; another form is corrupt.
                raise RecordError(
                    f"record {seq} ({kind} v{version}) cannot be upcast from v{number} to"
                    f" v{number + 1}: {type(error).__name__}: {error}; {VERIFY_ADVICE}"
                ) from None
        return self._encode(raw).decode()


_COLUMN_TYPES: Final = (str, int, str, str)


def _without_redundancy(kind: str, subject: str, payload: str) -> str:
    """``payload`` without its type, and without the key of a pod that ``subject`` holds."""
    begin = f'{{"type":"{kind}"'
    if kind in _POD_RECORD_NAMES:
        key = subject[len(_POD) + 1 :]
        # A key that JSON escapes stays in the payload.
        with_key = f'{begin},"key":"{key}"'
        if payload.startswith(with_key) and _unescaped(key):
            begin = with_key
    rest = payload[len(begin) :]
    return "{" + rest[1:] if rest.startswith(",") else "{}"


def _with_key(kind: str, subject: str, payload: str) -> str:
    """``payload`` with the key that only the subject holds. Decoding does not need the type."""
    if kind not in _POD_RECORD_NAMES or payload.startswith('{"key"'):
        return payload
    key = subject[len(_POD) + 1 :]
    if not _unescaped(key):
        return payload
    separator = "" if payload.startswith("{}") else ","
    return f'{{"key":"{key}"{separator}{payload[1:]}'


def _unescaped(text: str) -> bool:
    """Whether JSON encodes a text without escapes."""
    return text.isprintable() and "\\" not in text and '"' not in text


CODEC = Codec(UPCASTERS)
