"""Comparing: another scheduler's decisions as the watch shows them, and our own beside them.

A pod is compared on the state just before the change that carries the other's answer is folded.
That is what the issue of agreement is measured on; why a disagreement came about is found out
afterwards (:mod:`asched.daemon.shadow.explaining`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from asched.cycle.shadow import Answering
from asched.model.pod import POD_SCHEDULED, Pod
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.records import ShadowCompared

UNSCHEDULABLE = "Unschedulable"
"""The reason that kube-scheduler gives with a ``FitError``; gates and errors have others."""
SCHEDULER_ERROR = "SchedulerError"


class Missed(StrEnum):
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


class Question(NamedTuple):
    """An answer of the other scheduler, to be compared."""

    entry: PodEntry
    node: str
    """Where it bound the pod; empty where it found no node."""
    message: str


class Comparer:
    """Compares over one state. What it keeps is rebuilt by the list that begins every watch."""

    def __init__(self, state: ClusterState, answering: Answering) -> None:
        self.missed: Counter[Missed] = Counter()
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
                self.missed[Missed.LISTED] += 1
            if not pod.node_name and message:
                told[pod.metadata.uid] = message
        self._told = told

    def gone(self, uid: str) -> None:
        self._told.pop(uid, None)

    def question(self, pod: Pod, *, synced: bool = True) -> Question | None:
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
                self.missed[Missed.ERROR] += 1
            return None
        if pod.spec.scheduler_name not in self._state.profiles:
            self.missed[Missed.NO_PROFILE] += 1
            return None
        if entry is None and pod.terminal:
            return None  # it was compared when it was bound, and has finished since
        if entry is None:
            self.missed[Missed.FIRST_SEEN_DECIDED] += 1
            return None
        if not synced:
            self.missed[Missed.UNSYNCED] += 1
            return None
        return Question(entry, pod.node_name, message)

    def compared(self, question: Question) -> ShadowCompared:
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
