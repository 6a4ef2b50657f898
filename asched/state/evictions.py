"""Evictions that were decided and are not known to be carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from asched.framework.interface import Eviction


class Evictions(Mapping[str, Eviction]):
    """By the victim's uid; and who waits for any."""

    __slots__ = ("_by_victim", "_waiting")

    def __init__(self) -> None:
        self._by_victim: dict[str, Eviction] = {}
        self._waiting: Counter[str] = Counter()

    def __getitem__(self, victim_uid: str) -> Eviction:
        return self._by_victim[victim_uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_victim)

    def __len__(self) -> int:
        return len(self._by_victim)

    def make_room_for(self, preemptor_uid: str) -> bool:
        """Whether any of them is for this pod."""
        return preemptor_uid in self._waiting

    def begin(self, eviction: Eviction) -> None:
        self.end(eviction.victim.uid)
        self._by_victim[eviction.victim.uid] = eviction
        self._waiting[eviction.preemptor.uid] += 1

    def end(self, victim_uid: str) -> Eviction | None:
        """Carried out, failed, or not needed any more. None where it was not known."""
        eviction = self._by_victim.pop(victim_uid, None)
        if eviction is not None:
            waiting = eviction.preemptor.uid
            self._waiting[waiting] -= 1
            if not self._waiting[waiting]:
                del self._waiting[waiting]
        return eviction
