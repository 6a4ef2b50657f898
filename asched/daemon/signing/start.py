"""What a process verifies before it continues a journal; its anchors: a file, and the Lease."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio
import structlog
from anyio import to_thread

from asched.config.settings import JournalSettings
from asched.daemon.ha.lease import LeaderElector
from asched.journal.chain import GENESIS
from asched.journal.errors import TRANSIENT_ERRORS, JournalError
from asched.journal.signatures import (
    AnchoredHead,
    CheckedHistory,
    check_history,
    introduce_key,
    read_tips,
    sign_head,
)
from asched.journal.store import JournalStore
from asched.kube.timing import Clock
from asched.proof.anchors import ANNOTATION, Anchor, AnchorError, AnchorFile, heads_of
from asched.proof.heads import SignedHead
from asched.proof.keys import expanded
from asched.proof.merkle import Frontier
from asched.proof.statements import Position

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

START_TIMEOUT_S: Final = 30.0
"""For an answer of an anchor at the start, which fails without it."""
_NAME_LIMIT: Final = 63
"""Of an annotation, without its prefix and slash."""


class FileAnchor:
    """An :class:`~asched.proof.anchors.Anchor` in a file, which may be on storage that hangs."""

    def __init__(self, file: AnchorFile) -> None:
        self._file = file
        # One thread, however many attempts are abandoned on storage that hangs.
        self._threads = anyio.CapacityLimiter(1)

    @property
    def name(self) -> str:
        return self._file.name

    async def newest(self) -> SignedHead | None:
        return await to_thread.run_sync(self._file.last, abandon_on_cancel=True)

    async def is_missing(self) -> bool:
        return not await to_thread.run_sync(self._file.path.exists, abandon_on_cancel=True)

    async def create(self) -> None:
        await to_thread.run_sync(self._file.create, abandon_on_cancel=True)

    async def publish(self, head: SignedHead) -> None:
        await to_thread.run_sync(
            self._file.append, head, abandon_on_cancel=True, limiter=self._threads
        )


class LeaseAnchor:
    """An :class:`~asched.proof.anchors.Anchor` in an annotation of the Lease.

    The next renewal of the lease writes it. Until the first :meth:`publish`, the annotation of the
    last leader stays.
    """

    def __init__(self, elector: LeaderElector, annotation: str) -> None:
        self._elector = elector
        self._annotation = annotation

    @property
    def name(self) -> str:
        return f"lease {self._elector.lease}"

    async def newest(self) -> SignedHead | None:
        """That of the lease as it was last read."""
        stored = self._elector.stored_annotations()
        own = {key: text for key, text in stored.items() if key == self._annotation}
        heads = heads_of(own, self.name)
        return heads[0] if heads else None

    async def is_missing(self) -> bool:
        """Never: whoever may delete the lease may write it."""
        return False

    async def create(self) -> None:
        """The election creates the lease."""

    async def publish(self, head: SignedHead) -> None:
        self._elector.annotations[self._annotation] = head.line


def annotation_for(instance: str, *, shared: bool) -> str:
    """The annotation for a process's journal. Replicas that do not share one have one each."""
    if shared:
        return ANNOTATION
    host = re.sub(r"[^A-Za-z0-9.-]", "-", instance.rpartition("_")[0] or instance)
    prefix, _, name = ANNOTATION.partition("/")
    return f"{prefix}/{f'{name}.{host}'[:_NAME_LIMIT].rstrip('.-')}"


_RETRY_S: Final = 1.0


def file_anchors(settings: JournalSettings) -> list[Anchor]:
    """The anchor file of the configuration, if there is one."""
    if not settings.anchor_file:
        return []
    return [FileAnchor(AnchorFile(expanded(settings.anchor_file)))]


async def check_against(journal: JournalStore, anchors: Sequence[Anchor]) -> CheckedHistory | None:
    """Compare the journal with its signatures and with ``anchors``.

    None for a journal without signatures. Raises
    :class:`~asched.journal.errors.JournalError`, also if an anchor cannot be read, or if a signed
    journal has an anchor that is missing: without it, an older copy of the journal looks complete.
    """
    anchored: list[AnchoredHead] = []
    missing: list[str] = []
    for anchor in anchors:
        try:
            newest = await _answer(anchor, anchor.newest)
            if newest is not None:
                anchored.append(AnchoredHead(anchor.name, newest))
            elif await journal.signed_head() is None:
                continue
            elif await _answer(anchor, anchor.is_missing):
                missing.append(anchor.name)
            else:
                log.warning("anchor has no head to compare the journal with", anchor=anchor.name)
        except AnchorError as error:
            raise JournalError(str(error)) from None
    checked = await check_history(journal, anchored)
    if missing:
        raise JournalError(
            f"the journal is signed, and {missing[0]} is missing: restore the file; if the journal"
            " was never anchored there, create an empty one"
        )
    return checked


async def _answer(anchor: Anchor, ask: Callable[[], Awaitable[T]]) -> T:
    """What the anchor answers. Raises :class:`AnchorError`, also if its storage hangs."""
    with anyio.move_on_after(START_TIMEOUT_S):
        return await ask()
    raise AnchorError(f"{anchor.name} does not answer within {START_TIMEOUT_S:g} s")


async def _create(anchors: Sequence[Anchor]) -> None:
    """Create the anchors of a journal that begins: a signed journal with a missing one is an error.

    Raises :class:`~asched.journal.errors.JournalError`.
    """
    for anchor in anchors:
        try:
            await _answer(anchor, anchor.create)
        except AnchorError as error:
            raise JournalError(str(error)) from None


async def take_over(
    journal: JournalStore, anchors: Sequence[Anchor], clock: Clock
) -> CheckedHistory | None:
    """As :func:`check_against`, by the process that claimed the journal.

    It introduces its key to an empty journal, and signs the head that it continues. Waits while the
    journal cannot be written.
    """
    checked = await check_against(journal, anchors)
    key = journal.keys.signing
    if key is None:
        return None
    if checked is None:
        await _create(anchors)
        await _when_writable(lambda: introduce_key(journal, key, clock.time_ns()), clock)
        checked = CheckedHistory(GENESIS, Frontier(), 0, await read_tips(journal))
        log.info("journal is signed from its beginning", key=key.id)
    unsigned = checked.head.seq - checked.signed_seq
    if unsigned:
        log.warning(
            "unsigned records found in the journal",
            first=checked.signed_seq + 1,
            last=checked.head.seq,
        )
    log.info("journal matches its signature", key=key.id, records=checked.signed_seq)
    head = checked.head
    position = Position.of(head.seq, head.hash, checked.tree)
    tips = checked.tips
    await _when_writable(
        lambda: sign_head(journal, key, position, clock.time_ns(), tips=tips), clock
    )
    return checked


async def _when_writable(write: Callable[[], Awaitable[object]], clock: Clock) -> None:
    logged = ""
    while True:
        try:
            await write()
        except TRANSIENT_ERRORS as error:
            if str(error) != logged:
                logged = str(error)
                log.warning("head of the journal not signed, retrying", error=logged)
            await clock.sleep(_RETRY_S)
        else:
            return


def check_unchanged(checked: CheckedHistory | None, position: Position) -> None:
    """Check that what was folded is what was compared with the signatures."""
    if checked is not None and (checked.head.seq, checked.head.hash) != (
        position.seq,
        position.hash,
    ):
        raise JournalError("the journal was changed by another program while it was read")
