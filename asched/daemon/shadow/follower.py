"""Follows another scheduler: turns changes into records, comparisons and explanations.

It serves a live cluster and a recording alike, and cannot write to a cluster. A pod is compared on
the state right before the change with the other scheduler's decision is folded. Disagreements are
explained afterwards (:mod:`asched.daemon.shadow.explainer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from asched.config.file import Configuration
from asched.config.resolve import without_ignored_resources
from asched.core.inputs import Change, Deleted, Listed
from asched.cycle.shadow import ShadowDecider
from asched.cycle.shadow_report import Difference, NodePricing, Report, ReportWriter
from asched.daemon.shadow.explainer import Explainer, Window
from asched.daemon.shadow.steps import folded_step
from asched.framework.runtime.profile import PluginLoader, evaluate_in_process
from asched.model.pod import POD_SCHEDULED, Pod
from asched.model.resources import WatchedResource
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_list, observe_object
from asched.state.records import AnyRecord, ProfilesLoaded, ShadowCompared, ShadowExplained

UNSCHEDULABLE = "Unschedulable"
"""kube-scheduler's reason for a ``FitError``."""
SCHEDULER_ERROR = "SchedulerError"


class UncomparedPod(StrEnum):
    """Why a decision of the other scheduler was not compared."""

    FIRST_SEEN_DECIDED = "decided when first seen"
    """The pod was first observed with the decision: there is no state before it."""
    LISTED = "decided before a list"
    """A list showed it, so the state that it was based on was never observed."""
    UNSYNCED = "before everything was listed"
    ERROR = "scheduler error"
    """The attempt ended in an error, which is no decision."""
    NO_PROFILE = "no profile of that name"
    """No configured profile has the pod's schedulerName."""


class PendingComparison(NamedTuple):
    """A decision of the other scheduler that is about to be compared."""

    entry: PodEntry
    node: str
    """Empty if it found no node."""
    message: str


class Comparer:
    """Finds decisions of the other scheduler in changes, and compares them on one state. It keeps
    only what the list at the start of each watch restores."""

    def __init__(self, state: ClusterState) -> None:
        self.uncompared: Counter[UncomparedPod] = Counter()
        self._state = state
        self._decider = ShadowDecider(state)
        self._number = 0
        self._messages: dict[str, str] = {}
        """The last message of each pending pod, by uid."""

    def listed(self, pods: Iterable[Pod]) -> None:
        """Process a complete list. It does not show when decisions were made."""
        messages = {}
        for pod in pods:
            message = _message(pod, UNSCHEDULABLE)
            entry = self._state.entry(pod.key, pod.metadata.uid)
            before = self._messages.get(pod.metadata.uid, "")
            decided = bool(pod.node_name) or message != before
            if entry is not None and entry.placement_state is PlacementState.PENDING and decided:
                self.uncompared[UncomparedPod.LISTED] += 1
            if not pod.node_name and message:
                messages[pod.metadata.uid] = message
        self._messages = messages

    def forget(self, uid: str) -> None:
        self._messages.pop(uid, None)

    def decision_in(self, pod: Pod, *, synced: bool = True) -> PendingComparison | None:
        """The new decision that an updated pod carries, if it can be compared.

        Must be called before the change is folded, and the comparison must follow before, too.
        Decisions are only counted while not ``synced``.
        """
        entry, uid = self._state.entry(pod.key, pod.metadata.uid), pod.metadata.uid
        message = "" if pod.node_name else _message(pod, UNSCHEDULABLE)
        before = self._messages.pop(uid, "")
        if message:
            self._messages[uid] = message
        if entry is not None and entry.placement_state is not PlacementState.PENDING:
            return None
        if not pod.node_name and message in ("", before):
            if _message(pod, SCHEDULER_ERROR):
                self.uncompared[UncomparedPod.ERROR] += 1
            return None
        if pod.spec.scheduler_name not in self._state.profiles:
            self.uncompared[UncomparedPod.NO_PROFILE] += 1
            return None
        if entry is None and pod.terminal:
            return None  # it was compared when it was bound
        if entry is None:
            self.uncompared[UncomparedPod.FIRST_SEEN_DECIDED] += 1
            return None
        if not synced:
            self.uncompared[UncomparedPod.UNSYNCED] += 1
            return None
        return PendingComparison(entry, pod.node_name, message)

    def compare(self, pending: PendingComparison) -> ShadowCompared:
        """Both decisions, on the state that the record will follow."""
        self._number += 1
        info = pending.entry.info
        return self._decider.compare(self._number, info, pending.node, pending.message)


def _message(pod: Pod, reason: str) -> str:
    """Message of the condition ``PodScheduled=False`` with that reason; empty if there is none."""
    for condition in pod.status.conditions:
        if condition.type == POD_SCHEDULED and condition.status == "False":
            return condition.message if condition.reason == reason else ""
    return ""


class ShadowFollower:
    """The state, a delayed state for explanations, and the results of comparisons. Each record must
    be passed to :meth:`apply` before the next one is requested."""

    def __init__(
        self,
        load: PluginLoader,
        window: Window | None = None,
        unsynced: Iterable[WatchedResource] = (),
        prices: NodePricing | None = None,
    ) -> None:
        """``unsynced``: resources that must be listed before the first comparison. ``prices`` adds
        costs to the report."""
        self._fold = Fold(ClusterState(), load)
        self._delayed = Fold(ClusterState(), load)
        self.state = self._fold.state
        self._comparer = Comparer(self.state)
        self._explainer = Explainer(self._delayed, window)
        self._writer = ReportWriter(prices)
        self.unsynced = set(unsynced)
        """Resources that were not listed yet."""
        self._position = 0
        self.notes: list[str] = []
        """Notes in the report."""
        self._is_binding: dict[int, bool] = {}
        """Open disagreements by number: whether the other scheduler bound the pod."""
        self._differences: list[Difference] = []

    def restore(self, record: AnyRecord) -> None:
        """Fold a record of an earlier run; its disagreements are not explained again."""
        self._fold.apply(record)
        self._delayed.apply(record)

    def apply(self, record: AnyRecord) -> None:
        """Fold a record. An explained difference is kept for :meth:`take_differences`."""
        if isinstance(record, ShadowCompared):
            self._writer.compared(self.state, record)
        step = folded_step(self._fold, record, self._position)
        self._position += 1
        self._explainer.push(step)
        if isinstance(record, ShadowCompared) and not record.agreed:
            self._is_binding[record.number] = bool(record.node)
            self._explainer.add(step, record, self.state.pods[record.key].info.pod)
        if isinstance(record, ShadowExplained):
            binding = self._is_binding.pop(record.number)
            difference = self._writer.explained(record, binding=binding)
            if difference is not None:
                self._differences.append(difference)

    def take_differences(self) -> list[Difference]:
        """Remove and return the differences that were explained since the last call."""
        differences, self._differences = self._differences, []
        return differences

    def observe(
        self, change: Change, before_comparing: Callable[[], None] = lambda: None
    ) -> Iterator[AnyRecord]:
        """The records of a change: a comparison, then what changed.

        ``before_comparing`` is called before a comparison. Records that it applies precede the
        comparison in the journal and in the state.
        """
        if isinstance(change, Listed):
            if change.resource.value.type is Pod:
                self._comparer.listed(item for item in change.objects if isinstance(item, Pod))
            yield from observe_list(
                self.state,
                change.resource,
                change.objects,
                change.unreadable,
                api_version=change.api_version,
            )
            self.unsynced.discard(change.resource)
            return
        seen = change.object
        if isinstance(change, Deleted):
            record: AnyRecord | None = observe_deletion(self.state, seen)
            self._comparer.forget(seen.uid)
        else:
            if isinstance(seen, Pod):
                pending = self._comparer.decision_in(seen, synced=not self.unsynced)
                if pending is not None:
                    before_comparing()
                    yield self._comparer.compare(pending)
            record = observe_object(self.state, seen)
        if record is not None:
            yield record

    def explained(self, *, final: bool = False) -> Iterator[ShadowExplained]:
        """Explanations of disagreements past their window, by the state's clock; of all open ones
        if ``final``, because no change will follow."""
        return self._explainer.drain() if final else self._explainer.advance(self.state.now_ns)

    def due_ns(self) -> int | None:
        """When :meth:`explained` yields something if nothing else happens."""
        return self._explainer.due_ns()

    def report(self) -> Report:
        return self._writer.report(
            {why.value: number for why, number in sorted(self._comparer.uncompared.items())},
            self.notes,
        )


EXTENDERS_IGNORED = "extenders are ignored in shadow mode"
SHARE_IGNORED = "percentageOfNodesToScore is ignored in shadow mode: all nodes are evaluated"


def start_notes(configuration: Configuration) -> list[str]:
    """Settings that have no effect in shadow mode."""
    notes = []
    if configuration.scheduler.extenders:
        notes.append(EXTENDERS_IGNORED)
    if any(profile.percentage_of_nodes_to_score for profile in configuration.profiles):
        notes.append(SHARE_IGNORED)
    return notes


def shadow_profiles(configuration: Configuration) -> ProfilesLoaded:
    """The profiles to compare with: without extenders, and with all plugins in the process."""
    extenders = configuration.scheduler.extenders
    profiles = without_ignored_resources(configuration.profiles, extenders)
    gates = configuration.feature_gates
    return ProfilesLoaded(evaluate_in_process(profiles), feature_gates=gates)
