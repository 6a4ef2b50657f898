"""The report of shadow mode from a journal: agreement, and each disagreement with its cause."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
import numpy as np

from asched.audit.timeline import time_of
from asched.cycle.shadow_report import (
    MAX_DIFFERENCES,
    AgreementCounts,
    Difference,
    ShadowCosts,
    pod_costs,
)
from asched.pricing.prices import Prices
from asched.state.cluster import ClusterState
from asched.state.records import (
    AnyRecord,
    DisagreementCause,
    EngineStarted,
    ShadowCompared,
    ShadowExplained,
)

_BINDING, _AGREED, _SOLE = 4, 2, 1
_FLAG_BITS: Final = 3


class RecordedDifference(Difference, kw_only=True):
    """A disagreement in a journal, without the evaluation of nodes."""

    seq: int
    """The record of the comparison."""


class CauseCount(msgspec.Struct, frozen=True, rename="camel"):
    """How many disagreements have a cause, so far."""

    cause: DisagreementCause
    bindings: int
    messages: int


class RecordedShadow(msgspec.Struct, frozen=True, rename="camel"):
    """The report up to a record. Fields are those of ``asched shadow -o json``."""

    seq: int
    at: datetime
    shadow: bool
    """Whether the journal is that of a shadow. Otherwise there is nothing to report."""
    bindings: AgreementCounts
    sole_best: int
    messages: AgreementCounts
    unexplained_yet: int
    """Disagreements without a known cause, so far or because the shadow was restarted."""
    causes: tuple[CauseCount, ...]
    """The most frequent ones first."""
    differences: tuple[RecordedDifference, ...]
    differences_left_out: int = 0
    costs: ShadowCosts | None = None
    """None without prices."""


class _Explained(NamedTuple):
    seq: int
    binding: bool
    cause: DisagreementCause


class _CostSums(msgspec.Struct, array_like=True):
    """Costs up to each disagreement with a node of both schedulers."""

    prices: Prices
    """Those that the costs were computed with."""
    seqs: list[int] = []
    theirs: list[float] = []
    ours: list[float] = []

    def add(self, seq: int, theirs: float, ours: float) -> None:
        self.seqs.append(seq)
        self.theirs.append((self.theirs[-1] if self.theirs else 0.0) + theirs)
        self.ours.append((self.ours[-1] if self.ours else 0.0) + ours)

    def until(self, seq: int) -> ShadowCosts:
        """Those of the records up to one."""
        number, currency = bisect_right(self.seqs, seq), self.prices.currency
        if not number:
            return ShadowCosts(currency)
        return ShadowCosts(currency, number, self.theirs[number - 1], self.ours[number - 1])


class ShadowLogForm(msgspec.Struct, array_like=True):
    """A log to be stored."""

    is_shadow: bool = False
    compared: bytes = b""
    explained: list[_Explained] = []
    kept: list[RecordedDifference] = []
    explained_seqs: list[int] = []
    open: dict[int, tuple[bool, int]] = {}
    costs: _CostSums | None = None
    """None without prices."""


class ShadowLog:
    """Collects comparisons and explanations, record by record."""

    def __init__(self, form: ShadowLogForm | None = None, prices: Prices | None = None) -> None:
        """``form``: a stored log to continue with the next record. ``prices`` adds costs.

        Raises ValueError for the log of a shadow that was made with other prices.
        """
        form = form or ShadowLogForm()
        self._costs = None if prices is None else _CostSums(prices)
        if self._costs is not None and form.is_shadow:
            if form.costs is None or form.costs.prices != prices:
                raise ValueError("it was built with other prices")
            self._costs = form.costs
        self.is_shadow = form.is_shadow
        self._compared = array("Q", form.compared)
        """The record of each comparison and its flags; 8 bytes, as there may be millions."""
        self._explained = form.explained
        self._kept = form.kept
        self._explained_seqs = form.explained_seqs
        """For each kept difference the record with its cause; 0 for none."""
        self._open = form.open
        """By number: whether it is a binding, and the index of the difference, or -1."""

    @property
    def form(self) -> ShadowLogForm:
        """To be stored by a machine of the same byte order."""
        return ShadowLogForm(
            is_shadow=self.is_shadow,
            compared=self._compared.tobytes(),
            explained=self._explained,
            kept=self._kept,
            explained_seqs=self._explained_seqs,
            open=self._open,
            costs=self._costs,
        )

    def apply(self, seq: int, record: AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it, which no comparison changes."""
        match record:
            case EngineStarted():
                self.is_shadow |= record.shadow
                self._open.clear()  # numbers start again, and what is open stays unexplained
            case ShadowCompared():
                self.is_shadow = True
                self._compare(seq, record, state)
            case ShadowExplained():
                self._explain(seq, record)

    def _compare(self, seq: int, record: ShadowCompared, state: ClusterState) -> None:
        binding = bool(record.node)
        sole = binding and record.agreed and len(record.best) == 1
        flags = _BINDING * binding | _AGREED * record.agreed | _SOLE * sole
        self._compared.append(seq << _FLAG_BITS | flags)
        if record.agreed:
            return
        if self._costs is not None:
            costs = pod_costs(state, record, self._costs.prices)
            if costs is not None:
                self._costs.add(seq, *costs)
        index = -1
        if len(self._kept) < MAX_DIFFERENCES:
            index = len(self._kept)
            self._kept.append(_difference(seq, record, state.date_ns))
            self._explained_seqs.append(0)
        self._open[record.number] = (binding, index)

    def _explain(self, seq: int, record: ShadowExplained) -> None:
        binding, index = self._open.pop(record.number, (False, -1))
        self._explained.append(_Explained(seq, binding, record.cause))
        if index >= 0:
            found = self._kept[index]
            found.cause, found.detail, found.explained = record.cause, record.detail, True
            self._explained_seqs[index] = seq

    def report(self, seq: int, date_ns: int) -> RecordedShadow:
        """The report as of a record."""
        end = bisect_right(self._compared, (seq + 1 << _FLAG_BITS) - 1)
        flags = np.frombuffer(self._compared, np.uint64)[:end] & 7
        counts = np.bincount(flags.astype(np.int64), minlength=8)
        explained = self._explained[: bisect_right(self._explained, seq, key=lambda e: e.seq)]
        causes = Counter((one.binding, one.cause) for one in explained)
        known = bisect_right(self._kept, seq, key=lambda one: one.seq)
        differed = int(counts[[0, _BINDING]].sum())
        return RecordedShadow(
            seq=seq,
            at=time_of(date_ns),
            shadow=self.is_shadow,
            bindings=_agreement(counts, causes, binding=True),
            sole_best=int(counts[_BINDING | _AGREED | _SOLE]),
            messages=_agreement(counts, causes, binding=False),
            unexplained_yet=max(0, differed - len(explained)),
            causes=_causes(causes),
            differences=tuple(self._as_of(index, seq) for index in range(known)),
            differences_left_out=differed - known,
            costs=None if self._costs is None else self._costs.until(seq),
        )

    def _as_of(self, index: int, seq: int) -> RecordedDifference:
        found, explained_seq = self._kept[index], self._explained_seqs[index]
        if not explained_seq or explained_seq <= seq:
            return found
        return msgspec.structs.replace(
            found, cause=DisagreementCause.UNEXPLAINED, detail="", explained=False
        )


def _agreement(
    counts: np.ndarray[tuple[int], np.dtype[np.int64]],
    causes: Counter[tuple[bool, DisagreementCause]],
    *,
    binding: bool,
) -> AgreementCounts:
    own = [flags for flags in range(8) if bool(flags & _BINDING) is binding]
    return AgreementCounts(
        compared=int(counts[own].sum()),
        agreed=int(counts[[flags for flags in own if flags & _AGREED]].sum()),
        causes={cause: causes[binding, cause] for kind, cause in causes if kind is binding},
    )


def _causes(causes: Counter[tuple[bool, DisagreementCause]]) -> tuple[CauseCount, ...]:
    found = [
        CauseCount(cause, causes[True, cause], causes[False, cause])
        for cause in {cause for _, cause in causes}
    ]
    found.sort(key=lambda one: (-one.bindings - one.messages, one.cause))
    return tuple(found)


def _difference(seq: int, record: ShadowCompared, date_ns: int) -> RecordedDifference:
    return RecordedDifference(
        seq=seq,
        number=record.number,
        at=time_of(date_ns),
        pod=record.key,
        uid=record.uid,
        node=record.node,
        message=record.message,
        best=record.best,
        own_message=record.own_message,
    )
