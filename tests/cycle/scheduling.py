"""A state with a decider on it: objects in, decisions out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asched.cycle.decide import Decider
from asched.framework.feature_gates import DEFAULT_FEATURE_GATES, FeatureGates
from asched.framework.interface import Plugin
from asched.framework.runtime.profile import ProfileSpec
from asched.group_cycle.decide import GroupDecider
from asched.model.quantity import NS_PER_S
from asched.model.resources import AnyObject
from asched.state import records as r
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.group_records import PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided, SessionExecuted
from asched.testing.invariants import InvariantChecker
from tests.state.profiles import loader, profile_of

_CHECK_INTERVAL = 10
BACKOFF_RESPECTED = FeatureGates(scheduler_pop_from_backoff_q=False)


class Scheduling:
    """Folds objects and decisions, and checks the state after each record."""

    def __init__(
        self,
        *plugins: type[Plugin],
        profiles: Sequence[ProfileSpec] = (),
        seed: int = 1,
        gates: FeatureGates = DEFAULT_FEATURE_GATES,
        checked: bool = True,
    ) -> None:
        """``checked``: False for tests that count calls of plugins; the checks call PreEnqueue."""
        self.records: list[r.AnyRecord] = []
        self._invariants = InvariantChecker() if checked else None
        self.fold = Fold(ClusterState(), loader(*plugins))
        self.state = self.fold.state
        self.decider = Decider(self.state)
        self.decider.groups = GroupDecider(self.state, self.decider.cache)
        self.apply(r.EngineStarted("test", seed))
        loaded = tuple(profiles) or (profile_of(*plugins),)
        self.apply(r.ProfilesLoaded(loaded, feature_gates=gates))

    def apply(self, record: r.AnyRecord) -> None:
        self._fold(record)
        self._check()

    def _fold(self, record: r.AnyRecord) -> None:
        self.records.append(record)
        self.fold.apply(record)

    def _check(self) -> None:
        if self._invariants is not None:
            self._invariants.check(self.state)

    def see(self, *objects: AnyObject) -> None:
        """A large cluster is checked after every tenth object, because a check reads all."""
        interval = _CHECK_INTERVAL if len(objects) > 2 * _CHECK_INTERVAL else 1
        for number, item in enumerate(objects, start=1):
            self._fold(r.ObjectObserved(item))
            if not number % interval or number == len(objects):
                self._check()

    def pass_time(self, seconds: float) -> None:
        self.apply(r.TurnStarted(self.state.now_ns + round(seconds * NS_PER_S)))

    def next(self) -> tuple[r.Decision, ...]:
        decisions = self.decider.next()
        for decision in decisions:
            self.apply(decision)
        return decisions

    def decide(self) -> list[r.Decision]:
        """Decide until there is nothing to decide now."""
        return [decision for batch in iter(self.next, ()) for decision in batch]


def pod_of(decision: r.Decision) -> str:
    """The key of the decision's pod."""
    assert not isinstance(decision, SessionExecuted | PodGroupStatusDecided | PodGroupAttempted), (
        decision
    )
    return decision.key


def nodes_of(decisions: Iterable[r.Decision]) -> dict[str, str]:
    """Assigned nodes by pod key."""
    return {d.key: d.node for d in decisions if isinstance(d, r.Assigned)}


def the_one(decisions: Sequence[r.Decision]) -> r.Decision:
    assert len(decisions) == 1, decisions
    return decisions[0]
