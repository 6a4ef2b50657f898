"""Following another scheduler: what a watch shows becomes records, comparisons and explanations.

The same for a live cluster and for a recording. It holds nothing that could write to a cluster.

Comparing: another scheduler's decisions as the watch shows them, and our own beside them.

A pod is compared on the state just before the change that carries the other's answer is folded.
That is what the issue of agreement is measured on; why a disagreement came about is found out
afterwards (:mod:`asched.daemon.shadow.explaining`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from asched.config.extenders import without_ignored_resources
from asched.config.file import Configuration
from asched.core.inputs import Change, Deleted, Listed
from asched.cycle.shadow import ShadowDecider
from asched.daemon.shadow.explaining import Explainer, Window
from asched.daemon.shadow.report import Difference, Report, ReportWriter
from asched.daemon.shadow.steps import folded_step
from asched.framework.runtime.profile import PluginLoader, evaluate_in_process
from asched.model.pod import POD_SCHEDULED, Pod
from asched.model.resources import WatchedResource
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.fold import Fold
from asched.state.observe import observe_deletion, observe_list, observe_object
from asched.state.records import AnyRecord, ProfilesLoaded, ShadowCompared, ShadowExplained

UNSCHEDULABLE = "Unschedulable"
"""The reason that kube-scheduler gives with a ``FitError``; gates and errors have others."""
SCHEDULER_ERROR = "SchedulerError"


class UncomparedPod(StrEnum):
    """Why an answer of the other scheduler was not compared."""

    FIRST_SEEN_DECIDED = "decided when first seen"
    """The watch showed the pod only with the answer on it: there was no state before."""
    LISTED = "decided before a list"
    """It was found by a list, so the state it was decided on was never seen."""
    UNSYNCED = "before everything was listed"
    """Something that decisions depend on was not known yet."""
    ERROR = "scheduler error"
    """The other's attempt ended in an error, which is no decision."""
    NO_PROFILE = "no profile of that name"
    """No profile of ours serves the pod's schedulerName."""


class PendingComparison(NamedTuple):
    """An answer of the other scheduler, to be compared."""

    entry: PodEntry
    node: str
    """Where it bound the pod; empty where it found no node."""
    message: str


class Comparer:
    """Compares over one state. What it keeps is rebuilt by the list that begins every watch."""

    def __init__(self, state: ClusterState, answering: ShadowDecider) -> None:
        self.missed: Counter[UncomparedPod] = Counter()
        self._state = state
        self._answering = answering
        self._number = 0
        self._told: dict[str, str] = {}
        """By uid, the message that a pending pod carried last."""

    def listed(self, pods: Iterable[Pod]) -> None:
        """A complete list: what it shows was decided at moments that nobody knows."""
        told = {}
        for pod in pods:
            message = _message(pod, UNSCHEDULABLE)
            entry = self._state.entry(pod.key, pod.metadata.uid)
            before = self._told.get(pod.metadata.uid, "")
            decided = bool(pod.node_name) or message != before
            if entry is not None and entry.phase is PodPhase.PENDING and decided:
                self.missed[UncomparedPod.LISTED] += 1
            if not pod.node_name and message:
                told[pod.metadata.uid] = message
        self._told = told

    def gone(self, uid: str) -> None:
        self._told.pop(uid, None)

    def question(self, pod: Pod, *, synced: bool = True) -> PendingComparison | None:
        """What is to be compared if the pod, as it now is, carries an answer that it did not carry
        before.

        To be asked before the change is folded, and so is the comparison. While not ``synced``
        answers are only counted.
        """
        entry, uid = self._state.entry(pod.key, pod.metadata.uid), pod.metadata.uid
        message = "" if pod.node_name else _message(pod, UNSCHEDULABLE)
        before = self._told.pop(uid, "")
        if message:
            self._told[uid] = message
        if entry is not None and entry.phase is not PodPhase.PENDING:
            return None
        if not pod.node_name and message in ("", before):
            if _message(pod, SCHEDULER_ERROR):
                self.missed[UncomparedPod.ERROR] += 1
            return None
        if pod.spec.scheduler_name not in self._state.profiles:
            self.missed[UncomparedPod.NO_PROFILE] += 1
            return None
        if entry is None and pod.terminal:
            return None  # it was compared when it was bound, and has finished since
        if entry is None:
            self.missed[UncomparedPod.FIRST_SEEN_DECIDED] += 1
            return None
        if not synced:
            self.missed[UncomparedPod.UNSYNCED] += 1
            return None
        return PendingComparison(entry, pod.node_name, message)

    def compared(self, question: PendingComparison) -> ShadowCompared:
        """The other's answer and ours. To be asked on the state that the record then follows."""
        self._number += 1
        info = question.entry.info
        return self._answering.compared(self._number, info, question.node, question.message)


def _message(pod: Pod, reason: str) -> str:
    """The message of ``PodScheduled=False`` with that reason; empty where there is none."""
    for condition in pod.status.conditions:
        if condition.type == POD_SCHEDULED and condition.status == "False":
            return condition.message if condition.reason == reason else ""
    return ""


class ShadowFollower:
    """The state, a second one that trails behind it, and what is found by comparing.

    Every record, whoever makes it, is to be given to :meth:`apply` before the next one is asked
    for.
    """

    def __init__(
        self,
        load: PluginLoader,
        window: Window | None = None,
        awaited: Iterable[WatchedResource] = (),
    ) -> None:
        """``load`` finds plugins; nothing is compared before each of ``awaited`` was listed once."""
        self._fold = Fold(ClusterState(), load)
        self._trail = Fold(ClusterState(), load)
        self.state = self._fold.state
        self._comparer = Comparer(self.state, ShadowDecider(self.state))
        self._explainer = Explainer(self._trail, window)
        self._writer = ReportWriter()
        self.awaited = set(awaited)
        """What was not listed yet."""
        self._position = 0
        self._notes: list[str] = []
        self._differences: list[Difference] = []
        self._of_bindings: dict[int, bool] = {}
        """Open disagreements by number: whether they are about bindings."""

    # -- records ------------------------------------------------------------------------------

    def remember(self, record: AnyRecord) -> None:
        """Fold a record of an earlier run: it is history, and nothing in it is explained."""
        self._fold.apply(record)
        self._trail.apply(record)

    def apply(self, record: AnyRecord) -> None:
        """Fold a record. An explained difference is kept for :meth:`take_differences`."""
        if isinstance(record, ShadowCompared):
            self._writer.compared(self.state, record)
        step = folded_step(self._fold, record, self._position)
        self._position += 1
        self._explainer.push(step)
        if isinstance(record, ShadowCompared) and not record.agreed:
            self._of_bindings[record.number] = bool(record.node)
            self._explainer.ask(step, record, self.state.pods[record.key].info.pod)
        if isinstance(record, ShadowExplained):
            binding = self._of_bindings.pop(record.number)
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
        """What a change of the watch is worth recording: a comparison, then the news.

        ``before_comparing`` is called first where there is something to compare: what it applies
        precedes the comparison in the journal, so it must in the state as well.
        """
        if isinstance(change, Listed):
            pods = [item for item in change.objects if isinstance(item, Pod)]
            if change.resource.value.type is Pod:
                self._comparer.listed(pods)
            yield from observe_list(self.state, change.resource, change.objects, change.unreadable)
            self.awaited.discard(change.resource)
            return
        seen = change.object
        if isinstance(change, Deleted):
            news: AnyRecord | None = observe_deletion(self.state, seen)
            self._comparer.gone(seen.uid)
        else:
            if isinstance(seen, Pod):
                question = self._comparer.question(seen, synced=not self.awaited)
                if question is not None:
                    before_comparing()
                    yield self._comparer.compared(question)
            news = observe_object(self.state, seen)
        if news is not None:
            yield news

    def explained(self) -> Iterator[ShadowExplained]:
        """Disagreements of which, by the state's clock, all that bears on them was seen."""
        yield from self._explainer.advance(self.state.now_ns)

    def explained_at_the_end(self) -> Iterator[ShadowExplained]:
        """All that are open, because nothing more will be seen."""
        yield from self._explainer.drain()

    # -- looking at it ------------------------------------------------------------------------

    def due_ns(self) -> int | None:
        """When :meth:`explained` has something to give, if nothing more happens."""
        return self._explainer.due_ns()

    def note(self, text: str) -> None:
        """Say something about the comparison as a whole in its report."""
        self._notes.append(text)

    def report(self) -> Report:
        return self._writer.report(
            {why.value: number for why, number in sorted(self._comparer.missed.items())},
            self._notes,
        )


EXTENDERS_UNASKED = "extenders are not asked in shadow mode: what they would say is missing"
SHARE_IGNORED = "percentageOfNodesToScore is ignored in shadow mode: all nodes are looked at"


def start_notes(configuration: Configuration) -> list[str]:
    """What of the configuration has no effect here."""
    notes = []
    if configuration.scheduler.extenders:
        notes.append(EXTENDERS_UNASKED)
    if any(profile.percentage_of_nodes_to_score for profile in configuration.profiles):
        notes.append(SHARE_IGNORED)
    return notes


def profiles_record(configuration: Configuration) -> ProfilesLoaded:
    """The profiles as they are compared: without extenders, which nobody asks."""
    scheduler = configuration.scheduler
    profiles = without_ignored_resources(configuration.profiles, scheduler.extenders)
    # Nobody asks from outside here.
    return ProfilesLoaded(evaluate_in_process(profiles))
