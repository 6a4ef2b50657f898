"""Follows the journal as it grows, decides everything once more, and looks at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asched.audit.replay import ReplayVerifier
from asched.framework.pod_groups import MemberStatus, PodGroupKey, group_of
from asched.framework.runtime.profile import PluginLoader
from asched.model.groups import PodGroup
from asched.state import invariants
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, Assigned, PermitAllowed, Rejected
from asched.state.session_records import EvictionDecided
from tests.fault_simulation.breach import BreachError, demand
from tests.fault_simulation.differences import differences, plain

CHECK_EVERY = 25
"""Batches between two looks at all of the state."""


class Auditor:
    """Knows nothing but the journal. What it has folded is a rebuild of the daemon's state, and what
    it decides a replay of the daemon's decisions, at every batch."""

    def __init__(self, load: PluginLoader) -> None:
        self._fold = Fold(ClusterState(), load)
        self._judge = ReplayVerifier(self._fold, from_the_start=True)
        self._next_seq = 1
        self._batches = 0
        self._looked_at: ClusterState | None = None
        """The daemon's state that was compared last."""
        self.records = 0
        self.assigned: set[tuple[str, str]] = set()
        """Uid and node of every assignment that was ever durable."""
        self.evicted: set[str] = set()
        """Uids of all whose eviction was ever decided."""
        self.live: Callable[[], ClusterState | None] = lambda: None
        """The state of the daemon that appends, as it is in the moment of an append."""

    @property
    def state(self) -> ClusterState:
        return self._fold.state

    @property
    def decisions(self) -> int:
        return self._judge.decisions

    def stored(self, first_seq: int, records: Sequence[AnyRecord]) -> None:
        """A batch is durable. Raises BreachError."""
        demand(first_seq == self._next_seq, f"a batch begins at {first_seq}, not {self._next_seq}")
        released: set[PodGroupKey] = set()
        for record in records:
            divergence = self._judge.follow(self._next_seq, record)
            demand(divergence is None, f"replay differs: {divergence}")
            self._look_at(record, released)
            self._next_seq += 1
        self.records += len(records)
        for group in sorted(released):
            self._check_whole(group)
        self._batches += 1
        if self._batches % CHECK_EVERY == 0 or self.live() is not self._looked_at:
            # At the begin of a life, too: what its checkpoint lacked may be over soon.
            self.check_state()

    def check_state(self) -> None:
        """The costly part: all of the state, and that the daemon's is the same. Raises BreachError."""
        try:
            invariants.check(self.state)
        except AssertionError as error:
            raise BreachError(f"record {self._next_seq - 1}: {error}") from None
        live = self._looked_at = self.live()
        if live is not None:
            self._check_same(live)

    def check_end(self) -> None:
        """Nothing was left undecided that follows from what is recorded. Raises BreachError."""
        self.live = lambda: None
        self.check_state()
        divergence = self._judge.end(self._next_seq)
        demand(divergence is None, f"replay differs: {divergence}")

    def _check_same(self, live: ClusterState) -> None:
        if plain(self.state) != plain(live):
            raise BreachError(
                f"record {self._next_seq - 1}: the daemon's state is not what the journal makes:"
                f" {differences(self.state, live)}"
            )

    # -- single records -----------------------------------------------------------------------

    def _look_at(self, record: AnyRecord, released: set[PodGroupKey]) -> None:
        match record:
            case Assigned():
                self._check_room(record)
                self.assigned.add((record.uid, record.node))
                if not record.holds:
                    self._note_group(record.key, released)
            case PermitAllowed():
                self._note_group(record.key, released)
            case Rejected():
                self.evicted.update(victim.uid for victim in record.victims)
            case EvictionDecided():
                self.evicted.add(record.uid)

    def _check_room(self, made: Assigned) -> None:
        """No node is overcommitted by a decision, as far as the journal knew when it was made."""
        table = self.state.nodes
        row = table.row_of(made.node)
        demand(
            row is not None and bool(table.alive[row]),
            f"{made.key} is assigned to {made.node}, which is not there",
        )
        assert row is not None
        demand(
            table.pod_count[row] <= table.allowed_pods[row],
            f"{made.node} has more pods than it may, by {made.key}",
        )
        for name in self.state.pods[made.key].info.shape.requests:
            used, offered = table.requested_on(row, name), table.allocatable_on(row, name)
            demand(
                used <= offered,
                f"{made.node} is overcommitted by {made.key}: {used} of {offered} {name}",
            )

    # -- gangs --------------------------------------------------------------------------------

    def _note_group(self, key: str, released: set[PodGroupKey]) -> None:
        entry = self.state.pods.get(key)
        group = None if entry is None else group_of(entry.info.pod)
        if group is not None:
            released.add(group)

    def _check_whole(self, group: PodGroupKey) -> None:
        """Members of a gang are let go only when there are as many as it needs."""
        found = self.state.objects(PodGroup).get(group.key)
        needed = 0 if found is None else found.min_count
        placed = self.state.groups.members(group).count(MemberStatus.PLACED)
        demand(
            placed >= needed,
            f"gang {group.key} of {needed} has {placed} members with a place that nothing holds",
        )
