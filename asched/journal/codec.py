"""Records to rows and back.

A payload is compact JSON (``sqlite3 journal.db 'select payload from journal_record' | jq``). What
other columns say is not in it: the record's type, which is the column ``kind``, and a pod's key, which
the ``subject`` ends in. Each row also has the version of its record's form. When the form of a
record changes, one function per step is added to :data:`UPCASTERS`; what was written before is
brought up step by step while it is read, and stays in the journal as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from asched.journal.errors import RecordError
from asched.state.records import AnyRecord, ObjectGone, ObjectSeen
from asched.state.session_records import (
    PodGroupDecided,
    PodGroupWriteFailed,
    PodGroupWritten,
    SessionHeld,
)

RECORD_LIMIT_CHARACTERS: Final = 128 * 1024 * 1024
"""Of a payload. The largest that is ever recorded is what an extender said of each node, of 64 MiB."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""One version step of one kind: the raw JSON of version n in, that of version n + 1 out."""

UPCASTERS: Mapping[str, Sequence[Upcaster]] = {}
"""Per kind, the steps from version 1 on. A kind's current version is one more than its steps."""

KINDS: Mapping[str, type[AnyRecord]] = {t.__name__: t for t in get_args(AnyRecord)}


class Encoded(NamedTuple):
    """A record in its stored form, not yet numbered."""

    kind: str
    version: int
    subject: str
    payload: str


def object_subject(kind: str, key: str) -> str:
    """The subject of an object's history, such as ``pod/default/web-1`` or ``node/n1``."""
    return _storable(f"{kind.lower()}/{key}")


def session_subject(scheduler_name: str) -> str:
    """The subject of the sessions of that scheduler name."""
    return _storable(f"session/{scheduler_name}")


def _storable(subject: str) -> str:
    """PostgreSQL's text holds no NUL. No name has one; a damaged one must not stop the journal."""
    return subject.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in subject else subject


def subject_of(record: AnyRecord) -> str:
    """Whose history a record belongs to; empty for what concerns the engine as a whole."""
    if type(record) in _OF_A_POD:  # most are
        return _storable(f"{_POD}/{record.key}")  # type: ignore[union-attr]  # that is what the set says
    if isinstance(record, ObjectSeen):
        return object_subject(type(record.object).__name__, record.object.key)
    if isinstance(record, ObjectGone):
        return object_subject(record.kind, record.key)
    if isinstance(record, PodGroupDecided | PodGroupWritten | PodGroupWriteFailed):
        return object_subject(record.kind, record.group)
    if isinstance(record, SessionHeld):
        return session_subject(record.scheduler_name)
    return ""


_POD = "pod"
_OF_A_POD = frozenset(
    kind for kind in KINDS.values() if kind is not ObjectGone and "key" in kind.__struct_fields__
)
"""The kinds of record with a pod's key, which is all that have a key but :class:`ObjectGone`."""


class Codec:
    """Encodes and decodes records under one registry of upcasters."""

    def __init__(self, upcasters: Mapping[str, Sequence[Upcaster]]) -> None:
        unknown = sorted(set(upcasters) - set(KINDS))
        if unknown:
            raise ValueError(f"upcasters for unknown kinds: {', '.join(unknown)}")
        self._upcasters = upcasters
        self.versions: Mapping[str, int] = {
            kind: 1 + len(upcasters.get(kind, ())) for kind in KINDS
        }
        """The version in which each kind is written."""
        self._encode = msgspec.json.Encoder().encode
        self._decoders = {kind: msgspec.json.Decoder(form) for kind, form in KINDS.items()}

    def encode(self, record: AnyRecord) -> Encoded:
        """The stored form of ``record`` in its kind's current version."""
        kind, subject = type(record).__name__, subject_of(record)
        payload = self._encode(record).decode()
        return Encoded(kind, self.versions[kind], subject, _without_columns(kind, subject, payload))

    def decode(self, seq: int, kind: str, version: int, subject: str, payload: str) -> AnyRecord:
        """The record that was stored, brought up to the current version.

        Raises :class:`RecordError`, naming ``seq`` and ``kind``, for an unknown kind, a version
        newer than this code, or a payload that is not one of that kind.
        """
        current = self.versions.get(kind)
        if current is None:
            raise RecordError(f"record {seq} is of unknown kind {kind!r}: upgrade asched")
        if len(payload) > RECORD_LIMIT_CHARACTERS:
            raise RecordError(
                f"record {seq} ({kind}) has {len(payload)} characters, more than any record"
            )
        payload = _with_key(kind, subject, payload)
        if version != current:
            payload = self._upcast(seq, kind, version, payload)
        try:
            return self._decoders[kind].decode(payload)
        except msgspec.DecodeError as error:
            raise RecordError(
                f"record {seq} ({kind} v{version}) does not decode: {error}"
            ) from None

    def _upcast(self, seq: int, kind: str, version: int, payload: str) -> str:
        current = self.versions[kind]
        if not 1 <= version < current:
            raise RecordError(
                f"record {seq} ({kind}) has version {version}, this asched knows 1 to {current}:"
                " upgrade asched"
            )
        try:
            raw = msgspec.json.decode(payload, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise RecordError(f"record {seq} ({kind} v{version}) is not JSON: {error}") from None
        for number, step in enumerate(self._upcasters[kind][version - 1 :], version):
            try:
                raw = step(raw)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                # A step may rely on the form that it was written for; what is not of it is damaged.
                raise RecordError(
                    f"record {seq} ({kind} v{version}) cannot be brought from v{number} to"
                    f" v{number + 1}: {type(error).__name__}: {error}"
                ) from None
        return self._encode(raw).decode()


def _without_columns(kind: str, subject: str, payload: str) -> str:
    """``payload`` without what other columns say: its type, and for a record of a pod the key."""
    rest = payload[len(kind) + len('{"type":""') :]
    if kind in _KEYED:
        key = subject[len(_POD) + 1 :]
        field = f',"key":"{key}"'
        # A key that JSON writes otherwise than the subject has it stays in the payload.
        if rest.startswith(field) and _plain(key):
            rest = rest[len(field) :]
    return "{" + rest[1:] if rest.startswith(",") else "{}"


def _with_key(kind: str, subject: str, payload: str) -> str:
    """``payload`` with the key that is only in the subject. (The type need not be put back; what was
    written by asched 0.1 has both.)"""
    if kind not in _KEYED or payload.startswith(('{"type"', '{"key"')):
        return payload
    key = subject[len(_POD) + 1 :]
    if not _plain(key):
        return payload
    separator = "" if payload.startswith("{}") else ","
    return f'{{"key":"{key}"{separator}{payload[1:]}'


def _plain(text: str) -> bool:
    """Whether JSON writes a text as it is."""
    return text.isprintable() and "\\" not in text and '"' not in text


_KEYED = frozenset(kind.__name__ for kind in _OF_A_POD if kind.__struct_fields__[0] == "key")
"""The kinds of record that begin with a pod's key."""

CODEC = Codec(UPCASTERS)
