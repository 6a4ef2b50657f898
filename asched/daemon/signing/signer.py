"""Signs the head of the journal at most once a second, and publishes it to anchors.

The signer computes the Merkle tree from the hashes that its own process appended. A change in the
database between an append and the signature is therefore not signed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import anyio
import structlog
from prometheus_client.core import Metric

from asched.daemon.telemetry.metrics import counter, gauge
from asched.journal.chain import Head
from asched.journal.errors import FencedError, JournalError
from asched.journal.sealing import batch_leaf
from asched.journal.signatures import ProofTips, read_tips, sign_head, with_new_statements
from asched.journal.store import AppendResult, JournalStore
from asched.kube.timing import Clock
from asched.proof.anchors import Anchor, AnchorError
from asched.proof.heads import SignedHead
from asched.proof.merkle import Frontier
from asched.proof.statements import Position

SIGN_INTERVAL_S: Final = 1.0
"""Minimum time between two signatures. After a crash, this much of the journal is not signed."""
FINISH_TIMEOUT_S: Final = 1.0
"""For the last head of a stopping process, in the database and in the anchors."""
PUBLISH_TIMEOUT_S: Final = 10.0
"""For one head in one anchor, which may be on storage that hangs."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _PublishedAnchor:
    """An anchor, and which head it got when."""

    def __init__(self, anchor: Anchor, every_s: float) -> None:
        self.anchor = anchor
        self.every_s = every_s
        self.last_s = float("-inf")
        self.newest: SignedHead | None = None
        self.kind = anchor.name.partition(" ")[0]
        self.failures = 0
        self.error = ""


class HeadSigner:
    """The signatures of one daemon. Without a key it only knows the head, for metrics."""

    def __init__(
        self,
        journal: JournalStore,
        position: Position,
        clock: Clock,
        tips: ProofTips | None = None,
    ) -> None:
        """``position`` and ``tips``: the end of the journal, which this process verified. Without
        ``tips`` those that the first signature finds."""
        self.head: Head = Head(position.seq, position.batch, position.hash)
        """The last batch that was appended."""
        self.signed_seq = 0
        """The records up to this one are signed."""
        self.anchors: list[_PublishedAnchor] = []
        self._journal = journal
        self._clock = clock
        self._tips = tips
        self._tree: Frontier = position.tree
        self._hashes: list[str] = []
        """Of the batches after the tree."""
        self._finished_at: Head | None = None
        self._error = ""
        self._woken = anyio.Event()
        self._lock = anyio.Lock()
        self._newest: SignedHead | None = None
        """The last signed head."""
        self._to_publish = anyio.Event()
        self._publishing = anyio.Lock()

    @property
    def signs(self) -> bool:
        return self._journal.keys.signing is not None

    def publish_to(self, anchor: Anchor, every_s: float) -> None:
        """Publish heads to ``anchor``, at most one in ``every_s`` seconds."""
        self.anchors.append(_PublishedAnchor(anchor, every_s))
        self._woken.set()

    def appended(self, appended: AppendResult) -> None:
        """The process appended a batch."""
        self.head = appended.head
        if self.signs:
            self._hashes.append(appended.hash)
            self._woken.set()

    async def run(self) -> None:
        """Sign what was appended, and publish the signed heads, until cancelled."""
        if not self.signs:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publish_heads)
            while True:
                await self._woken.wait()
                self._woken = anyio.Event()
                await self.sign()
                await self._clock.sleep(SIGN_INTERVAL_S)

    async def sign(self) -> None:
        """Sign the present head; :meth:`run` publishes it. A failure is logged, and retried by
        :meth:`run`."""
        if self.head != self._finished_at:
            await self._sign(final=False)

    async def finish(self, *, all_committed: bool) -> None:
        """Sign the last head of a process that appends nothing after it.

        ``all_committed``: whether the journal ends with the last known batch for certain.
        """
        if self.head == self._finished_at:
            return
        with anyio.move_on_after(FINISH_TIMEOUT_S) as limit:
            await self._sign(final=all_committed)
            self._finished_at = self.head
            await self._publish(now=True)
        if limit.cancelled_caught:
            missing = "anchored" if self.head == self._finished_at else "signed"
            log.warning(f"last head not {missing}: timeout", limit_s=FINISH_TIMEOUT_S)

    async def _sign(self, *, final: bool) -> None:
        """Sign and store the present head, if there is a key."""
        key = self._journal.keys.signing
        if key is None:
            return
        async with self._lock:
            hashes, self._hashes = self._hashes, []
            for batch_hash in hashes:
                self._tree.append(batch_leaf(batch_hash))
            position = Position.of(self.head.seq, self.head.hash, self._tree)
            now_ns = self._clock.time_ns()
            try:
                if self._tips is None:
                    self._tips = await read_tips(self._journal)
                self._tips = await with_new_statements(self._journal, self._tips)
                signed = await sign_head(
                    self._journal, key, position, now_ns, tips=self._tips, final=final
                )
            except FencedError:
                return  # the next append reports it
            except JournalError as error:
                self._report(str(error))
                return
            self._error = ""
            self.signed_seq = signed.head.seq
            self._newest = signed
            self._to_publish.set()

    def _report(self, error: str) -> None:
        """Log each new reason once."""
        self._woken.set()
        if error != self._error:
            self._error = error
            log.warning("head of the journal not signed, retrying", error=error)

    async def _publish_heads(self) -> None:
        while True:
            await self._wait_to_publish()
            self._to_publish = anyio.Event()
            await self._publish(now=False)

    async def _wait_to_publish(self) -> None:
        """Until there is a new head, or time for an anchor that does not have the newest one: no
        record may follow for hours."""
        now_s = self._clock.monotonic_s()
        due_s = [
            published.last_s + published.every_s
            for published in self.anchors
            if published.newest != self._newest
        ]
        async with anyio.create_task_group() as tasks:
            if due_s:
                tasks.start_soon(self._wake_after, max(SIGN_INTERVAL_S, min(due_s) - now_s))
            await self._to_publish.wait()
            tasks.cancel_scope.cancel()

    async def _wake_after(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)
        self._to_publish.set()

    async def _publish(self, *, now: bool) -> None:
        """Publish the newest head to the anchors for which it is time, or to all ``now``."""
        async with self._publishing, anyio.create_task_group() as tasks:
            signed, at_s = self._newest, self._clock.monotonic_s()
            for published in self.anchors:
                due = now or at_s - published.last_s >= published.every_s
                if signed is not None and signed != published.newest and due:
                    tasks.start_soon(_publish_to, published, signed, at_s)


async def _publish_to(published: _PublishedAnchor, signed: SignedHead, at_s: float) -> None:
    try:
        with anyio.move_on_after(PUBLISH_TIMEOUT_S) as limit:
            await published.anchor.publish(signed)
        if limit.cancelled_caught:
            raise AnchorError(f"no answer within {PUBLISH_TIMEOUT_S:g} s")
    except AnchorError as error:
        published.failures += 1
        if str(error) != published.error:
            published.error = str(error)
            log.warning("anchor not written", anchor=published.anchor.name, error=str(error))
        return
    published.error = ""
    published.newest = signed
    published.last_s = at_s


_PART_DIGITS: Final = 12
"""48 bits, which a metric's value represents exactly."""


def head_metrics(signer: HeadSigner) -> Iterator[Metric]:
    """The head of the journal as numbers, so that the metrics' storage is an anchor, too."""
    head = signer.head
    yield gauge("asched_journal_head_record", "Last record of the journal.", [], [([], head.seq)])
    digits = (head.hash[begin : begin + _PART_DIGITS] for begin in range(0, 48, _PART_DIGITS))
    yield gauge(
        "asched_journal_head_hash",
        "Hash of the journal's head: its first 48 hexadecimal digits, 12 in each part"
        " (printf %012x), for asched journal verify --head.",
        ["part"],
        [([str(part)], int(text, 16)) for part, text in enumerate(digits, 1)],
    )
    yield gauge(
        "asched_journal_signing",
        "1 if the journal is signed, 0 without a key.",
        [],
        [([], signer.signs)],
    )
    yield gauge(
        "asched_journal_signed_record",
        "The records up to this one are signed; 0 without a key.",
        [],
        [([], signer.signed_seq)],
    )
    yield counter(
        "asched_journal_anchor_failures",
        "Number of signed heads that could not be published to an anchor.",
        ["anchor"],
        [
            ([published.anchor.name.partition(" ")[0]], published.failures)
            for published in signer.anchors
        ],
    )
