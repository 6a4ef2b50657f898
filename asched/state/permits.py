"""Pods that Permit plugins hold back, and what the plugins say about them later.

A plugin may speak about a held pod from anywhere: while it is asked about another pod, or when it is
told that one gave its room back. What it says is kept here, as part of the state, until the decision
that it leads to is folded.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from asched.framework.pod_info import PodInfo


class WaitingPod:
    """An assumed pod that Permit plugins hold back."""

    __slots__ = ("info", "node_name", "pending_until_ns", "since_ns")

    def __init__(
        self, info: PodInfo, node_name: str, since_ns: int, pending_until_ns: dict[str, int]
    ) -> None:
        self.info = info
        self.node_name = node_name
        self.since_ns = since_ns
        self.pending_until_ns = pending_until_ns
        """Deadline by plugin, for the plugins that have not allowed it."""


class PermitAnswer(NamedTuple):
    """A Permit plugin's later word about a held pod."""

    key: str
    plugin: str
    message: str | None
    """Why it is rejected, or None where it is allowed."""


class HeldPod:
    """What a plugin sees of a waiting pod; what it says is kept, not done at once."""

    __slots__ = ("_permits", "_waiting")

    def __init__(self, waiting: WaitingPod, permits: Permits) -> None:
        self._waiting = waiting
        self._permits = permits

    @property
    def info(self) -> PodInfo:
        return self._waiting.info

    @property
    def node_name(self) -> str:
        return self._waiting.node_name

    @property
    def pending(self) -> frozenset[str]:
        return frozenset(self._waiting.pending_until_ns)

    def allow(self, plugin: str) -> None:
        self._permits.say(PermitAnswer(self.info.key, plugin, None))

    def reject(self, plugin: str, message: str) -> None:
        self._permits.say(PermitAnswer(self.info.key, plugin, message))


class _Answers:
    """What was said, in order; what was said about one pod is found quickly."""

    __slots__ = ("_by_pod", "in_order")

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


class Permits:
    """The held pods by key, oldest first. Only the fold changes them; plugins add answers."""

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingPod] = {}
        self._answers = _Answers()
        # The deadlines, each with a number so that waiting pods are never compared. Those of pods
        # that wait no more are left until they come up.
        self._deadlines: list[tuple[int, int, str, WaitingPod]] = []
        self._numbered = 0

    @property
    def waiting(self) -> Mapping[str, WaitingPod]:
        return self._waiting

    @property
    def answers(self) -> Sequence[PermitAnswer]:
        """What plugins said that no decision has been folded for yet."""
        return [*self._answers.in_order]

    def next_deadline_ns(self) -> int | None:
        """When the next held pod's time is up; None while none is held."""
        while self._deadlines:
            until_ns, _, plugin, held = self._deadlines[0]
            if (
                self._waiting.get(held.info.key) is held
                and held.pending_until_ns.get(plugin) == until_ns
            ):
                return until_ns
            heapq.heappop(self._deadlines)
        return None

    def held(self) -> list[HeldPod]:
        """The waiting pods as plugins see them."""
        return [HeldPod(waiting, self) for waiting in self._waiting.values()]

    def hold(self, pod: WaitingPod) -> None:
        self._waiting[pod.info.key] = pod
        for plugin, until_ns in pod.pending_until_ns.items():
            self._numbered += 1
            heapq.heappush(self._deadlines, (until_ns, self._numbered, plugin, pod))

    def say(self, answer: PermitAnswer) -> None:
        """Keep an answer. One about a pod that is not held, or not by a plugin that allows it, says
        nothing; as in kube-scheduler anybody may reject."""
        waiting = self._waiting.get(answer.key)
        if waiting is None:
            return
        if answer.message is not None or answer.plugin in waiting.pending_until_ns:
            self._answers.add(answer)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Within the block nothing that plugins say is kept: for questions that decide nothing."""
        before = self.answers
        try:
            yield
        finally:
            self.hear_only(before)

    def hear_only(self, answers: Sequence[PermitAnswer]) -> None:
        """Nothing was said but these answers."""
        self._answers = _Answers()
        for answer in answers:
            self._answers.add(answer)

    def allow(self, key: str, plugin: str) -> bool:
        """A plugin lets a pod go; once the last one did the pod waits no more. False where that
        plugin does not hold it."""
        waiting = self._waiting.get(key)
        if waiting is None or waiting.pending_until_ns.pop(plugin, None) is None:
            return False
        self._answers.drop(PermitAnswer(key, plugin, None))
        if not waiting.pending_until_ns:
            self.end(key)
        return True

    def end(self, key: str) -> bool:
        """The pod waits no more, for whatever reason. False where it did not."""
        if self._waiting.pop(key, None) is None:
            return False
        self._answers.drop_pod(key)
        return True
