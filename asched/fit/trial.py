"""Decides pods of a manifest with the scheduler core, on a private copy of a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from asched.core.scheduler import SchedulerCore
from asched.framework.runtime.profile import ProfileSpec, evaluate_in_process
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import AnyObject
from asched.simulator.claims import SimulatedClaims
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.observe import observe_object
from asched.state.records import (
    AnyRecord,
    Assigned,
    AttemptFailed,
    EvictionSucceeded,
    ObjectDeleted,
    PermitRejected,
    ProfilesLoaded,
    Rejected,
)

MAX_EVICTION_ROUNDS: Final = 20
"""How often victims are deleted and the pods that they make room for are retried."""
_ATTEMPTS: Final = 20
"""Attempts for one pod of the state, before the trial ends: its decisions do not settle."""


class EvictedPod(NamedTuple):
    """A pod that preemption would delete."""

    key: str
    priority: int
    node: str
    preemptor: str
    """Key of the pod for which it is evicted."""


class TrialPod(NamedTuple):
    """What becomes of one pod."""

    key: str
    node: str
    """Empty if it gets none."""
    message: str
    """Why it gets no node."""
    evicts: bool
    """Whether pods are evicted for it."""


class FitTrial:
    """Adds objects and pods to a state and lets the scheduler core decide.

    A decision takes effect at once. Victims of a preemption are deleted when nothing else is left
    to decide, then their preemptors are tried again: a node counts only if a scheduling cycle
    chooses it. Time passes only for backoffs.
    """

    def __init__(self, fold: Fold, claim_templates: Iterable[ResourceClaim] = ()) -> None:
        """The fold must be a private copy."""
        self.state: ClusterState = fold.state
        self.evicted: list[EvictedPod] = []
        self._core = SchedulerCore(fold)
        self._core.begin_turn(self.state.now_ns)
        self._claims = SimulatedClaims(self.state, self.observe, self._record)
        self._claims.templates = {template.key: template for template in claim_templates}
        self._messages: dict[str, str] = {}
        self._preemptors: set[str] = set()
        self._pods: dict[str, None] = {}

    def without_extenders(self) -> bool:
        """Plugins of other processes are called in this one, extenders not at all. Returns whether
        that changes the configuration."""
        state = self.state
        if not state.evaluators:
            return False
        specs: Sequence[ProfileSpec] = [profile.spec for profile in state.profiles.values()]
        gates = state.plugin_context.feature_gates
        in_process = evaluate_in_process(specs)
        self._record(ProfilesLoaded(in_process, state.queue.settings, feature_gates=gates))
        return True

    def observe(self, item: AnyObject) -> bool:
        """Add or update an object. False if the state has it in this form."""
        record = observe_object(self.state, item)
        if record is None:
            return False
        self._record(record)
        return True

    def add(self, pod: Pod) -> None:
        """A new pending pod, with the claims of its templates."""
        self._pods[pod.key] = None
        self.observe(self._claims.generate(pod))

    def follow(self, key: str) -> None:
        """Count a pending pod of the state as one of the manifest."""
        self._pods[key] = None

    def remove(self, pod: Object) -> None:
        """Take back a pod that was added."""
        del self._pods[pod.key]
        self._record(ObjectDeleted("Pod", pod.key, pod.uid))

    def run(self) -> None:
        """Decide until the pods have nodes, or only time and changes of the cluster could help."""
        self._decide()
        for _ in range(MAX_EVICTION_ROUNDS):
            if not self._evict():
                return
            self._decide()
            self._wait_for_preemptors()

    def results(self) -> list[TrialPod]:
        """What became of each pod of the manifest, in the order of :meth:`add`."""
        return [self.result(key) for key in self._pods]

    def result(self, key: str) -> TrialPod:
        """What became of one pod of the manifest."""
        entry, evicts = self.state.pods[key], key in self._preemptors
        waiting = self.state.waiting.get(key)
        if entry.node and waiting is None:
            return TrialPod(key, entry.node, "", evicts)
        if waiting is not None:
            plugins = ", ".join(sorted(waiting.pending_until_ns))
            return TrialPod(key, "", f"waits on Permit for {plugins}", evicts)
        message = self._messages.get(key, "")
        if not message:
            gated = key in self.state.queue.gated
            message = "a PreEnqueue plugin gates the pod" if gated else "no attempt was made"
        return TrialPod(key, "", message, evicts)

    # -- decisions ------------------------------------------------------------------------------

    def _record(self, record: AnyRecord) -> None:
        self._core.apply(record)

    def _decide(self) -> None:
        most = _ATTEMPTS * (len(self.state.queue) + 1)
        while most > 0 and (decisions := self._core.propose()):
            most -= len(decisions)
            for decision in decisions:
                self._record(decision)
                match decision:
                    case Rejected() | AttemptFailed() | PermitRejected():
                        self._messages[decision.key] = decision.message
                    case Assigned():
                        self._messages.pop(decision.key, None)
        self._core.take_records()

    def _evict(self) -> bool:
        """Delete the victims of the manifest's pods. Returns whether there were any."""
        found = [
            eviction
            for eviction in self.state.evictions.values()
            if eviction.preemptor.key in self._pods
        ]
        for eviction in found:
            victim = eviction.victim
            entry = self.state.entry(victim.key, victim.uid)
            self._record(EvictionSucceeded(victim.key, victim.uid))
            if entry is None:
                continue
            preemptor = eviction.preemptor.key
            self._preemptors.add(preemptor)
            priority = entry.info.priority
            self.evicted.append(EvictedPod(victim.key, priority, entry.node, preemptor))
            self._claims.release(entry.info.pod)
            if self.state.entry(victim.key, victim.uid) is not None:
                self._record(ObjectDeleted("Pod", victim.key, victim.uid))
        return bool(found)

    def _wait_for_preemptors(self) -> None:
        """Let backoffs of the preemptors end."""
        for _ in range(MAX_EVICTION_ROUNDS):
            backoff = self.state.queue.backoff
            timer_ns = self.state.queue.next_timer_ns()
            if timer_ns is None or not any(key in backoff for key in self._preemptors):
                return
            self._core.begin_turn(max(self._core.now_ns, timer_ns))
            self._core.record_turn()
            self._decide()
