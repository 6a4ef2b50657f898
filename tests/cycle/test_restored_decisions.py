"""Decisions are the same after a restore, with warm caches and with empty caches."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from asched.batch.registry import SessionRegistry
from asched.config.batch import DEFAULT_CONF, parse_conf
from asched.config.kube_scheduler import API_VERSION, KIND
from asched.config.resolve import resolve
from asched.core.scheduler import SchedulerCore
from asched.framework.runtime.profile import ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.state import records as r
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.session_records import SessionsLoaded
from asched.testing.invariants import check
from tests.cycle.default_profile import installed
from tests.cycle.drawn_clusters import BATCH, DrawnCluster
from tests.framework.decoding import decode_configuration
from tests.run_size import examples
from tests.state.description import describe

_encode = msgspec.json.Encoder().encode

OURS = "default-scheduler"
GANGS: dict[str, Any] = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "GangScheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "GangSort"}]},
    },
    "pluginConfig": [{"name": "GangScheduling", "args": {"permitWaitingTimeSeconds": 60}}],
}
PROFILES: tuple[dict[str, Any], ...] = ({}, {"percentageOfNodesToScore": 30}, GANGS)
STEPS = 60


def _profiles(fields: dict[str, Any]) -> tuple[ProfileSpec, ...]:
    profile = {"schedulerName": OURS, **fields}
    document = {"apiVersion": API_VERSION, "kind": KIND, "profiles": [profile]}
    return resolve(decode_configuration(document), installed())


def _sessions() -> SessionSpec:
    conf = parse_conf(
        DEFAULT_CONF.replace("allocate, backfill", "reclaim, allocate, backfill, preempt"),
        SessionRegistry.discover().action_names,
    )
    return SessionSpec(BATCH, conf.actions, conf.tiers)


class Line:
    """A state and its decider."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.decider = SchedulerCore(fold)


class Run:
    """A live state, and states restored from its checkpoints that fold the same records."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._live = Line(Fold(ClusterState(), installed().load))
        self._others: list[Line] = []
        self.decisions: list[r.Decision] = []
        self.apply(r.EngineStarted("test", random.randrange(2**32)))
        self.reload()
        schedulers = [OURS]
        if random.random() < 0.5:
            schedulers.append(BATCH)
            self.apply(SessionsLoaded((_sessions(),)))
        self._cluster = DrawnCluster(random, schedulers)
        for item in self._cluster.start():
            self.apply(r.ObjectObserved(item))

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self._random.random() < 0.01:
                self.reload()
            news = self._cluster.step(self._live.fold.state)
            if news is not None:
                self.apply(news)
            if self._random.random() < 0.6:
                self._decide(self._random.randint(1, 6))
        self._compare()

    def apply(self, record: r.AnyRecord) -> None:
        for line in (self._live, *self._others):
            line.fold.apply(record)

    def reload(self) -> None:
        profiles = _profiles(self._random.choice(PROFILES))
        self.apply(r.ProfilesLoaded(profiles))

    def _decide(self, most: int) -> None:
        """Check that all decide the same, and a new decider, too."""
        for _ in range(most):
            fresh = self._restored()
            if self._random.random() < 0.1:
                self._others = [*self._others[-1:], self._restored()]
            expected = _encode(fresh.decider.propose())
            decisions = self._live.decider.propose()
            assert _encode(decisions) == expected, expected
            for other in self._others:
                theirs = _encode(other.decider.propose())
                assert theirs == expected, (theirs, expected)
            for decision in decisions:
                self.apply(decision)
            self.decisions += decisions
            if not decisions:
                return

    def _restored(self) -> Line:
        return Line(restore(checkpoint_of(self._live.fold.state), installed().load))

    def _compare(self) -> None:
        check(self._live.fold.state)
        described = describe(self._live.fold.state)
        for other in self._others:
            assert describe(other.fold.state) == described


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(12))
def test_restored_state_leads_to_the_same_decisions(seed: int) -> None:
    run = Run(Random(seed))
    run.go_on(STEPS)
    assert run.decisions
