"""Compares a journal with what was signed and anchored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, ParamSpec, TypeVar

from asched.journal.chain import GENESIS_HASH, Head, Segment, Writer, verify_writers
from asched.journal.chain_reader import ChainReader, ExpectedRoots
from asched.journal.errors import JournalCorruptError, JournalError
from asched.journal.sealing import BEGINNING, log_of, segment_digest, signers_for
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.proof import ProofError
from asched.proof.heads import SignedHead, TreeHead
from asched.proof.keys import SigningKey
from asched.proof.merkle import Frontier
from asched.proof.statements import FIRST_HASH, KeyChange, Position, StatementLog

P = ParamSpec("P")
T = TypeVar("T")


class AnchoredHead(NamedTuple):
    """A signed head from outside the database."""

    source: str
    signed: SignedHead


def check_segments(log: StatementLog, segments: Sequence[Segment]) -> None:
    """Check that a statement is about each segment of the archive.

    Raises :class:`JournalCorruptError`.
    """
    for segment in segments:
        statement = log.segment(segment.segment)
        name = f"segment {segment.segment} of the archive (records {segment.first_seq} to"
        name = f"{name} {segment.last_seq})"
        if statement is None:
            raise JournalCorruptError(f"{name} was inserted: no statement is about it")
        if statement.about != segment_digest(segment):
            raise JournalCorruptError(f"{name} differs from statement {statement.number} about it")
        _checked(log.check, statement)


class SignedState(NamedTuple):
    """The verified statements and signatures of a journal."""

    log: StatementLog
    stored: SignedHead | None
    """None without a key."""
    signed: TreeHead | None
    """That of :attr:`stored`."""
    heads: Sequence[TreeHead]
    """:attr:`signed`, and those that are anchored."""
    roots: ExpectedRoots

    async def archive_end(self, journal: JournalStore) -> Position:
        """The end of the archive of ``journal``, which has one.

        Raises :class:`JournalCorruptError` if no statement is about it.
        """
        segments, archived = await journal.segments(), await journal.archived()
        statement = self.log.segment(segments[-1].segment)
        assert statement is not None  # signed_state() checked the segments
        position = statement.position
        if Head(position.seq, position.batch, position.hash) != archived:
            raise JournalCorruptError(
                f"statement {statement.number} is not about the end of the archive at record"
                f" {archived.seq}"
            )
        return position

    @property
    def latest(self) -> TreeHead | None:
        """The head that was signed last, wherever it is. A writer signs one before it appends."""
        return max(self.heads, key=lambda head: (head.epoch, head.size, head.final), default=None)


async def signed_state(journal: JournalStore, anchored: Sequence[AnchoredHead] = ()) -> SignedState:
    """Verify all statements, signatures and segments, and collect the roots to compare with.

    Raises :class:`JournalCorruptError` naming what is wrong.
    """
    # Statements only grow, so they are read last: the others refer to no later ones.
    segments, stored = await journal.segments(), await journal.signed_head()
    head = await journal.head()
    log = log_of(await journal.statements())
    _checked(log.check_all)
    if journal.keys.all_trusted and (log.keys or journal.keys.signing is None):
        _checked(log.check_trusted, journal.keys.all_trusted)
    check_segments(log, segments)
    roots = ExpectedRoots()
    for statement in log.statements:
        _checked(roots.add_position, statement.position, f"statement {statement.number}")
    signed, heads = None, []
    if stored is not None:
        signed = _head_of(log, stored, "the signed head")
        heads.append(signed)
        roots.add_head(signed, f"the head that was signed at {_time(signed.signed_at_ns)}")
    elif log.keys and not _has_only_its_key(log, head):
        raise JournalCorruptError("the journal has a key, but its signed head was deleted")
    for source, anchor in anchored:
        anchored_head = _head_of(log, anchor, source)
        heads.append(anchored_head)
        at = _time(anchored_head.signed_at_ns)
        roots.add_head(anchored_head, f"the head of {at} in {source}")
    return SignedState(log, stored, signed, heads, roots)


def _has_only_its_key(log: StatementLog, head: Head) -> bool:
    """Whether its process was interrupted after it introduced the key, before the first head."""
    last = log.statements[-1]
    return isinstance(last.about, KeyChange) and last.position.batch == head.batch


def _head_of(log: StatementLog, signed: SignedHead, source: str) -> TreeHead:
    """The head, with its signature and its statements verified."""
    size = signed.head.size
    # Two keys sign the head at which one replaces the other.
    keys = [key for key in (log.key_at(size), log.key_at(size - 1)) if key is not None]
    if not keys:
        raise JournalCorruptError(f"{source} is signed by key {signed.key}, the journal is not")
    key = next((key for key in keys if key.id == signed.key), keys[0])
    try:
        head = signed.check(key)
    except ProofError as error:
        raise JournalCorruptError(f"{source}: {error}") from None
    if log.hash_of(head.statements) != head.statements_hash:
        raise JournalCorruptError(
            f"statements up to {head.statements} are not those of {source}: they were altered or"
            " deleted"
        )
    return head


class CheckedHistory(NamedTuple):
    """The end of a journal that was compared with what was signed."""

    head: Head
    tree: Frontier
    signed_seq: int
    """The records up to this one are signed."""
    tips: ProofTips


async def check_history(
    journal: JournalStore, anchored: Sequence[AnchoredHead] = ()
) -> CheckedHistory | None:
    """Check the journal before a process continues it, from the newest signed statement on.

    None for a journal without signatures, if no key is configured. Raises :class:`JournalError` if
    the journal and the key do not belong together, :class:`JournalCorruptError` if the journal is
    not the one that was signed, or shorter than one of ``anchored``.
    """
    state = await signed_state(journal, anchored)
    log, roots = state.log, state.roots
    if log.key is None:
        await _check_may_be_unsigned(journal, log, anchored)
        return None
    signers_for(log, journal.keys)
    size = 0 if state.signed is None else state.signed.size
    before = [s.position for s in log.statements if s.position.batch <= size]
    latest = max(before, key=lambda position: position.batch, default=BEGINNING)
    reader = ChainReader.after(journal, latest, roots)
    await reader.check_start()
    async for _ in reader.ranges():
        pass
    roots.check_complete(reader.head)
    check_final(state.latest, reader.head)
    signed_seq = 0 if state.signed is None else state.signed.seq
    tips = await read_tips(journal, log, state.heads)
    return CheckedHistory(reader.head, reader.tree, signed_seq, tips)


def check_final(signed: TreeHead | None, head: Head) -> None:
    """Raises :class:`JournalCorruptError` if records follow the last one of a stopped writer.

    ``signed``: the latest signed head.
    """
    if signed is not None and signed.final and head.seq > signed.seq:
        raise JournalCorruptError(
            f"records {signed.seq + 1} to {head.seq} were inserted: the writer had stopped at"
            f" record {signed.seq}"
        )


async def _check_may_be_unsigned(
    journal: JournalStore, log: StatementLog, anchored: Sequence[AnchoredHead]
) -> None:
    if journal.keys.signing is None:
        return
    head = await journal.head()
    for source, anchor in anchored:
        raise JournalCorruptError(
            f"{source} has a signed head at record {anchor.head.seq}, the journal is not signed"
        )
    if head.seq:
        raise JournalError(
            f"the journal has {head.seq} records without a signature, and a key is configured:"
            " verify it, then sign it once with `asched journal sign`"
        )
    # The first signature of the key covers all statements. Segments need one.
    marks = await journal.checkpoint_marks()
    if log.statements or marks:
        raise JournalCorruptError(
            f"the journal has no records, but {'statements' if log.statements else 'checkpoints'},"
            " which another program inserted: begin with a new database"
        )


async def introduce_key(journal: JournalStore, key: SigningKey, now_ns: int) -> None:
    """Let ``key`` sign an unsigned journal from its present head on. Idempotent."""
    if log_of(await journal.statements()).key == key.public_key:
        return
    await journal.change_key(KeyChange(key.public_key.text, "", now_ns), (key,))


async def sign_existing(journal: JournalStore, key: SigningKey, now_ns: int) -> TreeHead:
    """Let ``key`` sign an unsigned journal, which the caller verified, from its head on.

    Raises :class:`JournalError` if it is signed.
    """
    log = log_of(await journal.statements())
    if log.key is not None:
        raise JournalError(f"the journal is signed by key {log.key.id} already")
    position = await _end_of(journal, log)
    await introduce_key(journal, key, now_ns)
    return (await sign_head(journal, key, position, now_ns, final=True)).head


async def replace_key(
    journal: JournalStore, old: SigningKey, new: SigningKey, now_ns: int
) -> TreeHead:
    """Let ``new`` sign the journal from its head on, after comparing it with its signatures.

    Raises :class:`JournalError`.
    """
    if old.public_key == new.public_key:
        raise JournalError(f"key {new.id} signs the journal already")
    checked = await check_history(journal)
    if checked is None:
        raise JournalError("the journal is not signed: sign it with `asched journal sign`")
    position = Position.of(checked.head.seq, checked.head.hash, checked.tree)
    await journal.change_key(KeyChange(new.public_key.text, old.id, now_ns), (old, new))
    return (await sign_head(journal, new, position, now_ns, final=True)).head


async def _end_of(journal: JournalStore, log: StatementLog) -> Position:
    positions = [statement.position for statement in log.statements]
    reader = ChainReader.from_beginning(journal)
    if positions:
        reader = ChainReader.after(journal, max(positions, key=lambda at: at.batch))
    async for _ in reader.ranges():
        pass
    return reader.position


async def sign_head(
    journal: JournalStore,
    key: SigningKey,
    position: Position,
    now_ns: int,
    *,
    tips: ProofTips | None = None,
    final: bool = False,
) -> SignedHead:
    """Sign and store the head at a position, which the caller knows to be the journal's.

    ``tips``: what the process knows of its writers and statements; None to read them now. Raises
    :class:`JournalError`.
    """
    tips = tips or await read_tips(journal)
    head = TreeHead(
        size=position.batch,
        root=position.tree.root.hex(),
        seq=position.seq,
        hash=position.hash,
        epoch=tips.epoch,
        writer_hash=tips.writer_hash,
        statements=tips.statements,
        statements_hash=tips.statements_hash,
        final=final,
        signed_at_ns=now_ns,
    )
    signed = SignedHead.sign(head, key)
    await journal.save_signed_head(signed)
    return signed


class ProofTips(NamedTuple):
    """The newest writer and statement of a journal, as a process verified them."""

    epoch: int
    writer_hash: str
    statements: int
    """Number of statements."""
    statements_hash: str


async def read_tips(
    journal: JournalStore, log: StatementLog | None = None, heads: Sequence[TreeHead] = ()
) -> ProofTips:
    """The newest writer, and the newest statement of ``log`` or of the journal.

    Raises :class:`JournalCorruptError` if the writers are not those of ``heads``.
    """
    writers = await journal.writers()
    check_writers(writers, heads)
    newest = writers[-1].hash if writers else GENESIS_HASH
    return ProofTips(len(writers), newest, *_tip(log or log_of(await journal.statements())))


async def with_new_statements(journal: JournalStore, tips: ProofTips) -> ProofTips:
    """``tips`` with the statements that were added since.

    Raises :class:`JournalCorruptError` if an earlier one was altered or deleted, or if the key did
    not sign a new one, and :class:`JournalError` if there is a new key.
    """
    tip = await journal.statements_tip()
    if tip is not None and (tip.number, tip.hash) == (tips.statements, tips.statements_hash):
        return tips
    log = log_of(await journal.statements())
    if log.hash_of(tips.statements) != tips.statements_hash:
        raise JournalCorruptError(
            f"statements up to {tips.statements} were altered or deleted by another program"
        )
    signers_for(log, journal.keys)
    for statement in log.statements[tips.statements :]:
        _checked(log.check, statement)
    number, statement_hash = _tip(log)
    return tips._replace(statements=number, statements_hash=statement_hash)


def _tip(log: StatementLog) -> tuple[int, str]:
    return (0, FIRST_HASH) if log.tip is None else (log.tip.number, log.tip.hash)


def check_writers(writers: Sequence[Writer], heads: Sequence[TreeHead]) -> None:
    """Check that the writers are complete and unaltered, and those of signed heads.

    Raises :class:`JournalCorruptError`.
    """
    verify_writers(writers)
    for head in heads:
        if head.epoch > len(writers):
            raise JournalCorruptError(
                f"the writer of epoch {head.epoch} is missing from the journal"
            )
        if head.epoch and writers[head.epoch - 1].hash != head.writer_hash:
            raise JournalCorruptError(
                f"the writer of epoch {head.epoch} differs from the one of the signed head"
                f" at record {head.seq}"
            )


def _checked(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return check(*args, **kwargs)
    except ProofError as error:
        raise JournalCorruptError(str(error)) from None


def _time(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // NS_PER_S, UTC):%Y-%m-%dT%H:%M:%SZ}"
