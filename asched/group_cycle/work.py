"""The work of one group cycle in counted steps, so that no group blocks the scheduler.

Steps are estimates in the unit of :mod:`asched.state.attempt_budget`, measured with 5,000 nodes
and 50,000 pods. Measured times would differ in a replay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from asched.framework.pod_info import PodInfo, PodShape, QueuedPod
from asched.state.attempt_budget import FREE_STEPS
from asched.state.cluster import ClusterState

MAX_STEPS: Final = 16_000_000
"""Of one cycle: 0.64 s, which is one pass over 8,000 like members."""
TRY_STEPS: Final = 2_000
"""To try a member of a form that was tried before."""
KNOWN_FORMS: Final = 128
"""Forms for which answers are kept. In a group with more, each member is tried from the start."""
_FORM_STEPS: Final = 7_000
_FORM_STEPS_PER_NODE: Final = 2
_SEARCH_STEPS: Final = 15_000
"""To search victims for a member of a form for which they were searched before."""
_SEARCH_STEPS_PER_NODE: Final = 600
_CONSIDERED_STEPS: Final = 150
"""To put a possible victim in order."""
REMOVAL_STEPS: Final = 750
"""To leave a possible victim out of the state, and to put it back."""

_PARTS: Final = 4
"""A part of a group that is too large takes this share of the work, so that several placements can
be tried and victims searched."""

NO_SEARCH: Final = "not eligible because victims of all members take too long to find"


class CycleWork:
    """What one cycle has done and may still do."""

    def __init__(self, cluster: ClusterState, pending: Iterable[QueuedPod]) -> None:
        """``pending``: the members of all groups of the cycle."""
        self._costs = cluster.guards.costs
        self._nodes = cluster.nodes.cluster_size
        self.forms = len({queued.info.shape for queued in pending})
        """Different forms of members."""
        self._tried = False
        self._searched: set[PodShape] = set()
        self.steps = 0

    @property
    def spent(self) -> bool:
        """Whether nothing more should begin."""
        return self.steps >= MAX_STEPS

    @property
    def left(self) -> int:
        return max(0, MAX_STEPS - self.steps)

    @property
    def removable(self) -> int:
        """How many possible victims may still be left out."""
        return self.left // REMOVAL_STEPS

    @property
    def charged(self) -> int:
        """The steps that the namespace pays for; 0 for a cycle that is free."""
        return self.steps if self.steps > FREE_STEPS else 0

    def pass_steps(self, pending: Sequence[QueuedPod]) -> int:
        """The steps of trying these members once more."""
        steps, costs = len(pending) * TRY_STEPS, self._costs
        if self.forms > KNOWN_FORMS:
            steps += len(pending) * self._form_steps
        elif not self._tried:
            steps += self.forms * self._form_steps
        first = {} if self._tried else {queued.info.shape: queued for queued in pending}
        for queued in pending:
            if not costs.is_cheap(queued.info):
                steps += costs.of_attempt(queued.info, preemption=False)
                if first.get(queued.info.shape) is queued:
                    steps += costs.of_first(queued.info)
        return steps

    def allows(self, passes: int, pending: Sequence[QueuedPod]) -> bool:
        """Whether these members may be tried that often."""
        return self.steps + passes * self.pass_steps(pending) <= MAX_STEPS

    def allows_victims(self, pending: Sequence[QueuedPod], searches: int) -> bool:
        """Whether these members may be tried with victims, with that many more searches, and then
        without the victims."""
        steps = 2 * self.pass_steps(pending) + searches * _SEARCH_STEPS
        return self.steps + steps <= MAX_STEPS

    def begin_pass(self, pending: Sequence[QueuedPod]) -> None:
        """These members are tried."""
        self.steps += self.pass_steps(pending)
        self._tried = True

    def may_search(self, info: PodInfo) -> bool:
        """Whether victims may be searched for one member; counted if so."""
        steps = _SEARCH_STEPS
        if info.shape not in self._searched or self.forms > KNOWN_FORMS:
            steps += self._nodes * _SEARCH_STEPS_PER_NODE
        if self._searched and self.steps + steps > MAX_STEPS:
            return False
        self._searched.add(info.shape)
        self.steps += steps
        return True

    def screen(self, shapes: int) -> None:
        """The room for members of that many forms is counted."""
        self.steps += shapes * self._form_steps

    def consider(self, units: int) -> None:
        """So many possible victims are put in order."""
        self.steps += units * _CONSIDERED_STEPS

    def remove(self, pods: int) -> None:
        """That many possible victims are left out of the state."""
        self.steps += pods * REMOVAL_STEPS

    @property
    def _form_steps(self) -> int:
        return _FORM_STEPS + self._nodes * _FORM_STEPS_PER_NODE


def part_size(cluster: ClusterState, pending: Sequence[QueuedPod], least: int) -> int:
    """How many of the first of these members a cycle tries that cannot try all of them; 0 if
    ``least`` members take too long."""

    def steps(count: int) -> int:
        part = pending[:count]
        return CycleWork(cluster, part).pass_steps(part)

    most = bisect_right(range(1, len(pending) + 1), MAX_STEPS // _PARTS, key=steps)
    if most >= least:
        return most
    return least if least <= len(pending) and steps(least) <= MAX_STEPS else 0


def too_expensive(members: int, forms: int) -> str:
    """The message about members that have to be tried at once, which takes too long."""
    what = "1 member" if members == 1 else f"{members} members"
    if forms > 1:
        what += f" of {forms} forms"
    return f"too expensive: {what} at once take too long to try in this cluster"
