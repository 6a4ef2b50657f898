"""Assumed pods that wait on Permit, and the calls of plugins that allow or reject them.

A plugin may make such a call at any time. It is part of the state until the decision that follows
from it is folded.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from asched.framework.pod_groups import PodGroupKey, group_of
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import to_printable
from asched.state.stored_form import StoredForm


class WaitingPodState(msgspec.Struct, array_like=True, eq=False):
    """An assumed pod that waits on Permit. A checkpoint encodes this struct directly."""

    info: PodInfo
    node_name: str
    since_ns: int
    pending_until_ns: dict[str, int]
    """Deadline by plugin, for the plugins that have not allowed it yet."""
    was_nominated: bool
    """Whether the pod was nominated to this node, and so blocked others before it waited."""


class PermitAnswer(NamedTuple):
    """A deferred ``allow`` or ``reject`` call of a plugin for a waiting pod."""

    key: str
    plugin: str
    message: str | None
    """The reason of a rejection; None if the pod is allowed."""


class WaitingPodsSnapshot(StoredForm):
    waiting: tuple[WaitingPodState, ...]
    answers: tuple[PermitAnswer, ...]


class WaitingPodHandle:
    """A waiting pod for plugins; answers are stored and take effect with the next decision. Those
    for a pod that no longer waits are ignored, even if another one of its name waits."""

    __slots__ = ("_pods", "_state")

    def __init__(self, state: WaitingPodState, pods: WaitingPods) -> None:
        self._state = state
        self._pods = pods

    @property
    def info(self) -> PodInfo:
        return self._state.info

    @property
    def node_name(self) -> str:
        return self._state.node_name

    @property
    def pending(self) -> frozenset[str]:
        return frozenset(self._state.pending_until_ns)

    def allow(self, plugin: str) -> None:
        self._answer(plugin, None)

    def reject(self, plugin: str, message: str) -> None:
        self._answer(to_printable(plugin), to_printable(message))

    def _answer(self, plugin: str, message: str | None) -> None:
        if self._pods.waiting.get(self.info.key) is self._state:
            self._pods.answer(PermitAnswer(self.info.key, plugin, message))


class _Answers:
    """Answers in order, with an index by pod."""

    def __init__(self) -> None:
        self.in_order: dict[PermitAnswer, None] = {}
        self._by_pod: dict[str, list[PermitAnswer]] = {}

    def add(self, answer: PermitAnswer) -> None:
        if answer not in self.in_order:
            self.in_order[answer] = None
            self._by_pod.setdefault(answer.key, []).append(answer)

    def drop(self, answer: PermitAnswer) -> None:
        if answer in self.in_order:
            del self.in_order[answer]
            self._by_pod[answer.key].remove(answer)

    def drop_pod(self, key: str) -> None:
        for answer in self._by_pod.pop(key, ()):
            del self.in_order[answer]


class WaitingPods:
    """The waiting pods by key, oldest first. Only the fold changes them; plugins add answers."""

    def __init__(self) -> None:
        self.waiting: dict[str, WaitingPodState] = {}
        self._answers = _Answers()
        # The number keeps heapq from comparing pods. Entries of pods that left stay until they
        # reach the top.
        self._deadlines: list[tuple[int, int, str, WaitingPodState]] = []
        self._pushed = 0
        self._numbers: dict[str, int] = {}
        """In the order of arrival."""
        self._members: dict[PodGroupKey, dict[str, None]] = {}
        self._added = 0

    @property
    def answers(self) -> Sequence[PermitAnswer]:
        """Answers that no folded decision covers yet."""
        return [*self._answers.in_order]

    def next_deadline_ns(self) -> int | None:
        """When the next waiting pod times out; None if none waits."""
        while self._deadlines:
            until_ns, _, plugin, pod = self._deadlines[0]
            if (
                self.waiting.get(pod.info.key) is pod
                and pod.pending_until_ns.get(plugin) == until_ns
            ):
                return until_ns
            heapq.heappop(self._deadlines)
        return None

    def handles(self) -> list[WaitingPodHandle]:
        """The waiting pods for plugins."""
        return [WaitingPodHandle(pod, self) for pod in self.waiting.values()]

    def members(self, group: PodGroupKey) -> list[WaitingPodHandle]:
        """The waiting pods of a group, oldest first."""
        keys = sorted(self._members.get(group, ()), key=self._numbers.__getitem__)
        return [WaitingPodHandle(self.waiting[key], self) for key in keys]

    def add(self, pod: WaitingPodState) -> None:
        self.waiting[pod.info.key] = pod
        self._added += 1
        self._numbers[pod.info.key] = self._added
        self._join(pod.info)
        for plugin, until_ns in pod.pending_until_ns.items():
            self._pushed += 1
            heapq.heappush(self._deadlines, (until_ns, self._pushed, plugin, pod))

    def update(self, info: PodInfo) -> None:
        """The pod changed; nothing if it does not wait."""
        pod = self.waiting.get(info.key)
        if pod is not None:
            self._leave(pod.info)
            pod.info = info
            self._join(info)

    def _join(self, info: PodInfo) -> None:
        group = group_of(info.pod)
        if group is not None:
            self._members.setdefault(group, {})[info.key] = None

    def _leave(self, info: PodInfo) -> None:
        group = group_of(info.pod)
        if group is not None:
            members = self._members[group]
            del members[info.key]
            if not members:
                del self._members[group]

    def answer(self, answer: PermitAnswer) -> None:
        """Store an answer; it is ignored if the pod does not wait.

        As in kube-scheduler any plugin may reject, but only a plugin that the pod waits for may
        allow.
        """
        pod = self.waiting.get(answer.key)
        if pod is None:
            return
        if answer.message is not None or answer.plugin in pod.pending_until_ns:
            self._answers.add(answer)

    @contextmanager
    def discard_answers(self) -> Iterator[None]:
        """Drop the answers given within the block: for evaluations that decide nothing."""
        before = self.answers
        try:
            yield
        finally:
            self.reset_answers(before)

    def reset_answers(self, answers: Sequence[PermitAnswer]) -> None:
        """Replace all stored answers."""
        self._answers = _Answers()
        for answer in answers:
            self._answers.add(answer)

    def allow(self, key: str, plugin: str) -> bool:
        """A plugin allows the pod; it stops waiting after the last plugin. False if the pod does
        not wait for that plugin."""
        pod = self.waiting.get(key)
        if pod is None or pod.pending_until_ns.pop(plugin, None) is None:
            return False
        self._answers.drop(PermitAnswer(key, plugin, None))
        if not pod.pending_until_ns:
            self.remove(key)
        return True

    def remove(self, key: str) -> bool:
        """The pod no longer waits, for whatever reason. False if it did not wait."""
        pod = self.waiting.pop(key, None)
        if pod is None:
            return False
        del self._numbers[key]
        self._leave(pod.info)
        self._answers.drop_pod(key)
        return True

    def snapshot(self) -> WaitingPodsSnapshot:
        waiting = [
            msgspec.structs.replace(pod, pending_until_ns={**pod.pending_until_ns})
            for pod in self.waiting.values()
        ]
        return WaitingPodsSnapshot(tuple(waiting), tuple(self._answers.in_order))

    def restore(self, snapshot: WaitingPodsSnapshot) -> None:
        for pod in snapshot.waiting:
            self.add(pod)
        self.reset_answers(snapshot.answers)
