"""Audits the journal while it grows: replays every decision and checks every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asched.audit.replay import ReplayVerifier
from asched.framework.pod_groups import MemberStatus, PodGroupKey, group_of
from asched.framework.runtime.profile import PluginLoader
from asched.model.groups import PodGroup
from asched.model.resource_claims import DeviceClass
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import AnyRecord, Assigned, PermitAllowed, Rejected
from asched.state.session_records import EvictionDecided
from asched.testing import invariants
from tests.fault_simulation.breach import BreachError, demand
from tests.fault_simulation.differences import differences, plain
from tests.fault_simulation.group_audit import GroupAudit
from tests.fault_simulation.tree_attempts import TreeAttempts

CHECK_EVERY = 25
"""Batches between two checks of the whole state."""


class Auditor:
    """Rebuilds the daemon's state from the journal alone and replays its decisions."""

    def __init__(self, load: PluginLoader) -> None:
        self._fold = Fold(ClusterState(), load)
        self._verifier = ReplayVerifier(self._fold, complete=True)
        self._next_seq = 1
        self._batches = 0
        self._compared: ClusterState | None = None
        """The daemon state of the latest comparison."""
        self.records = 0
        self.assigned: set[tuple[str, str]] = set()
        """Uid and node of every durable assignment."""
        self.evicted: set[str] = set()
        """Uids of all pods with a decided eviction."""
        self.trees = TreeAttempts()
        self.live: Callable[[], ClusterState | None] = lambda: None
        """Returns the state of the appending daemon at the time of the append."""

    @property
    def state(self) -> ClusterState:
        return self._fold.state

    @property
    def decisions(self) -> int:
        return self._verifier.decisions

    def stored(self, first_seq: int, records: Sequence[AnyRecord]) -> None:
        """Check a batch that became durable. Raises BreachError."""
        demand(first_seq == self._next_seq, f"a batch begins at {first_seq}, not {self._next_seq}")
        released: set[PodGroupKey] = set()
        cycles = GroupAudit(self.state)
        for record in records:
            cycles.before(record)
            divergence = self._verifier.verify(self._next_seq, record)
            demand(divergence is None, f"replay differs: {divergence}")
            self._check_record(record, released)
            self.trees.note(record, self.state)
            self._next_seq += 1
        cycles.end()
        self.records += len(records)
        for group in sorted(released):
            self._check_complete(group)
        self._batches += 1
        if self._batches % CHECK_EVERY == 0 or self.live() is not self._compared:
            # Also at the start of a process: a defect of its checkpoint may be short-lived.
            self.check_state()

    def check_state(self) -> None:
        """Check the whole state and compare it with the daemon's. Raises BreachError."""
        try:
            invariants.check(self.state)
        except AssertionError as error:
            raise BreachError(f"record {self._next_seq - 1}: {error}") from None
        live = self._compared = self.live()
        if live is not None:
            self._check_same(live)

    def check_end(self) -> None:
        """Check that no decision is missing at the end. Raises BreachError."""
        self.live = lambda: None
        self.check_state()
        divergence = self._verifier.end(self._next_seq)
        demand(divergence is None, f"replay differs: {divergence}")

    def _check_same(self, live: ClusterState) -> None:
        if plain(self.state) != plain(live):
            raise BreachError(
                f"record {self._next_seq - 1}: the daemon's state differs from the journal:"
                f" {differences(self.state, live)}"
            )

    # -- single records -----------------------------------------------------------------------

    def _check_record(self, record: AnyRecord, released: set[PodGroupKey]) -> None:
        match record:
            case Assigned():
                self._check_capacity(record)
                self.assigned.add((record.uid, record.node))
                if not record.permit_waits:
                    self._note_group(record.key, released)
            case PermitAllowed():
                self._note_group(record.key, released)
            case Rejected():
                self.evicted.update(victim.uid for victim in record.victims)
            case EvictionDecided():
                self.evicted.add(record.uid)

    def _check_capacity(self, made: Assigned) -> None:
        """No decision overcommits a node, by the state of the journal."""
        table = self.state.nodes
        row = table.row_of(made.node)
        demand(
            row is not None and bool(table.alive[row]),
            f"{made.key} is assigned to {made.node}, which does not exist",
        )
        assert row is not None
        demand(
            table.pod_count[row] <= table.allowed_pods[row],
            f"{made.node} has more pods than it may, by {made.key}",
        )
        classes = self.state.objects(DeviceClass).values()
        of_devices = {each.spec.extended_resource_name for each in classes}
        for name in self.state.pods[made.key].info.shape.requests:
            if name in of_devices:
                continue
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

    def _check_complete(self, group: PodGroupKey) -> None:
        """Members of a gang are allowed only with all places that it needs."""
        found = self.state.objects(PodGroup).get(group.key)
        needed = 0 if found is None else found.min_count
        placed = self.state.groups.members(group).count(MemberStatus.ASSIGNED)
        demand(
            placed >= needed,
            f"gang {group.key} of {needed} has {placed} allowed members",
        )
