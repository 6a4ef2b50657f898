"""Decided evictions with victims that still run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from asched.framework.cluster import Eviction
from asched.state.stored_form import StoredForm


class EvictionsSnapshot(StoredForm):
    evictions: tuple[Eviction, ...]
    completed_preemptors: tuple[tuple[str, str], ...]
    """Uids and keys, in order."""
    unneeded_preemptors: tuple[str, ...]


class Evictions(Mapping[str, Eviction]):
    """Pending evictions by the victim's uid."""

    def __init__(self) -> None:
        self.by_victim: dict[str, Eviction] = {}
        """Read-only; a plain dict, because the core tests it for each record."""
        self._pending_by_preemptor: Counter[str] = Counter()
        """The number of evictions by the preemptor's uid."""
        self.unneeded_preemptors: set[str] = set()
        """Uids of preemptors that no longer need their pending evictions."""
        self.completed_preemptors: dict[str, str] = {}
        """Keys by uid of the preemptors with evictions that have all ended; without the pods
        passed to :meth:`mark_unneeded` since."""

    def __getitem__(self, victim_uid: str) -> Eviction:
        return self.by_victim[victim_uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_victim)

    def __len__(self) -> int:
        return len(self.by_victim)

    def is_preempting(self, preemptor_uid: str) -> bool:
        """Whether any eviction is pending for this preemptor."""
        return preemptor_uid in self._pending_by_preemptor

    def begin(self, eviction: Eviction) -> None:
        self.end(eviction.victim.uid)
        self.by_victim[eviction.victim.uid] = eviction
        self._pending_by_preemptor[eviction.preemptor.uid] += 1
        self.completed_preemptors.pop(eviction.preemptor.uid, None)

    def end(self, victim_uid: str) -> Eviction | None:
        """The eviction succeeded, failed or is no longer needed. None if there was none."""
        eviction = self.by_victim.pop(victim_uid, None)
        if eviction is not None:
            preemptor = eviction.preemptor
            self._pending_by_preemptor[preemptor.uid] -= 1
            if not self._pending_by_preemptor[preemptor.uid]:
                del self._pending_by_preemptor[preemptor.uid]
                if preemptor.uid in self.unneeded_preemptors:
                    self.unneeded_preemptors.remove(preemptor.uid)
                else:
                    self.completed_preemptors[preemptor.uid] = preemptor.key
        return eviction

    def mark_unneeded(self, uid: str) -> None:
        """The preemptor needs no evictions any longer: it is bound or deleted."""
        self.completed_preemptors.pop(uid, None)
        if uid in self._pending_by_preemptor:
            self.unneeded_preemptors.add(uid)

    def mark_needed(self, uid: str) -> None:
        """Undo :meth:`mark_unneeded`: the pod is pending again."""
        self.unneeded_preemptors.discard(uid)

    def snapshot(self) -> EvictionsSnapshot:
        return EvictionsSnapshot(
            tuple(self.by_victim.values()),
            tuple(self.completed_preemptors.items()),
            tuple(sorted(self.unneeded_preemptors)),
        )

    def restore(self, snapshot: EvictionsSnapshot) -> None:
        for eviction in snapshot.evictions:
            self.begin(eviction)
        self.completed_preemptors.update(snapshot.completed_preemptors)
        self.unneeded_preemptors.update(snapshot.unneeded_preemptors)
