"""Evictions that were decided and are not known to be carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from asched.framework.interface import Eviction


class Evictions(Mapping[str, Eviction]):
    """By the victim's uid; and who waits for any."""

    __slots__ = ("_by_victim", "_done_for", "_useless", "_waiting")

    def __init__(self) -> None:
        self._by_victim: dict[str, Eviction] = {}
        self._waiting: Counter[str] = Counter()
        """How many there are, by the uid of the pod that they make room for."""
        self._useless: set[str] = set()
        self._done_for: dict[str, str] = {}

    def __getitem__(self, victim_uid: str) -> Eviction:
        return self._by_victim[victim_uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_victim)

    def __len__(self) -> int:
        return len(self._by_victim)

    def make_room_for(self, preemptor_uid: str) -> bool:
        """Whether any of them is for this pod."""
        return preemptor_uid in self._waiting

    @property
    def done_for(self) -> Mapping[str, str]:
        """The pods that some were for, and none is any more, and those that gave a place back which
        Permit had held; but for those that were forgotten since. Keys by uid."""
        return self._done_for

    @property
    def useless(self) -> Collection[str]:
        """Uids of pods that some are for and that have no use for the room."""
        return self._useless

    def begin(self, eviction: Eviction) -> None:
        self.end(eviction.victim.uid)
        self._by_victim[eviction.victim.uid] = eviction
        self._waiting[eviction.preemptor.uid] += 1
        self._done_for.pop(eviction.preemptor.uid, None)

    def end(self, victim_uid: str) -> Eviction | None:
        """Carried out, failed, or not needed any more. None where it was not known."""
        eviction = self._by_victim.pop(victim_uid, None)
        if eviction is not None:
            preemptor = eviction.preemptor
            self._waiting[preemptor.uid] -= 1
            if not self._waiting[preemptor.uid]:
                del self._waiting[preemptor.uid]
                if preemptor.uid in self._useless:
                    self._useless.remove(preemptor.uid)
                else:
                    self._done_for[preemptor.uid] = preemptor.key
        return eviction

    def has_use(self, key: str, uid: str) -> None:
        """The pod has a use for room, whether or not any eviction is or was for it."""
        if uid not in self._waiting:
            self._done_for[uid] = key

    def forget(self, uid: str) -> None:
        """The pod has no use for room any more: it is bound, or gone."""
        self._done_for.pop(uid, None)
        if uid in self._waiting:
            self._useless.add(uid)

    def remember(self, uid: str) -> None:
        """The pod was forgotten, and is pending after all."""
        self._useless.discard(uid)
