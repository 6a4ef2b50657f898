"""Combines the results of a session's plugins, tier by tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from asched.batch.corrections import Correction
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.session_objects import Job, Queue, Task
from asched.framework.session_plugins import (
    AllocatablePlugin,
    ClosingPlugin,
    EventHandlerPlugin,
    JobOrderPlugin,
    JobPipelinedPlugin,
    JobReadyPlugin,
    JobValidPlugin,
    NodeOrderPlugin,
    OverusedPlugin,
    PredicatePlugin,
    PreemptablePlugin,
    QueueOrderPlugin,
    ReclaimablePlugin,
    SessionPlugin,
    TaskOrderPlugin,
    ValidateResult,
    VictimFilter,
)
from asched.framework.sessions import Callback

P = TypeVar("P", bound=SessionPlugin)

CREATION: Final = "creation"
NAME: Final = "name"
"""What decides the order of jobs after all plugins."""


class TierPlugin(NamedTuple):
    """A plugin in a tier. A plugin that is listed twice has one instance."""

    plugin: SessionPlugin
    disabled: frozenset[Callback]


class Tiers:
    """Calls the plugins and combines their results as kube-batch does."""

    def __init__(
        self, tiers: Sequence[Sequence[TierPlugin]], corrections: frozenset[Correction]
    ) -> None:
        self._tiers = tiers
        self._all_tiers_consent = Correction.CONSENT_OF_ALL_TIERS in corrections
        self.calls: Counter[tuple[str, str]] = Counter()
        """By plugin name and callback."""
        self.rejections: Counter[tuple[str, str]] = Counter()
        every = [entry for tier in tiers for entry in tier]
        self.plugins = [*{id(entry.plugin): entry.plugin for entry in every}.values()]
        self.event_handlers = [p for p in self.plugins if isinstance(p, EventHandlerPlugin)]
        self.closing = [p for p in self.plugins if isinstance(p, ClosingPlugin)]
        self._job_orders = _enabled(every, JobOrderPlugin, Callback.JOB_ORDER)
        self._queue_orders = _enabled(every, QueueOrderPlugin, Callback.QUEUE_ORDER)
        self._task_orders = _enabled(every, TaskOrderPlugin, Callback.TASK_ORDER)
        self._ready = _enabled(every, JobReadyPlugin, Callback.JOB_READY)
        self._pipelined = _enabled(every, JobPipelinedPlugin, Callback.JOB_PIPELINED)
        self._predicates = _enabled(every, PredicatePlugin, Callback.PREDICATE)
        self._node_orders = _enabled(every, NodeOrderPlugin, Callback.NODE_ORDER)
        # kube-batch has no flag that disables these.
        self._overused = [p for p in self.plugins if isinstance(p, OverusedPlugin)]
        self._allocatable = [p for p in self.plugins if isinstance(p, AllocatablePlugin)]
        self._valid = [p for p in self.plugins if isinstance(p, JobValidPlugin)]
        self._preemptable = [_enabled(t, PreemptablePlugin, Callback.PREEMPTABLE) for t in tiers]
        self._reclaimable = [_enabled(t, ReclaimablePlugin, Callback.RECLAIMABLE) for t in tiers]

    def job_order(self, job: Job) -> tuple[Any, ...]:
        own = [plugin.job_order(job) for plugin in self._job_orders]
        return (*own, job.created_s, job.id)

    def job_order_parts(self, job: Job) -> tuple[tuple[str, Any], ...]:
        """The parts of :meth:`job_order` with the plugin that gives each."""
        own = [(plugin.name, plugin.job_order(job)) for plugin in self._job_orders]
        return (*own, (CREATION, job.created_s), (NAME, job.id))

    def queue_order(self, queue: Queue) -> tuple[Any, ...]:
        own = [plugin.queue_order(queue) for plugin in self._queue_orders]
        return (*own, queue.created_s, queue.name)

    def task_order(self, task: Task) -> tuple[Any, ...]:
        own = [plugin.task_order(task) for plugin in self._task_orders]
        return (*own, task.created_s, task.uid)

    def job_ready(self, job: Job) -> bool:
        return all(plugin.job_ready(job) for plugin in self._ready)

    def job_pipelined(self, job: Job) -> bool:
        return all(plugin.job_pipelined(job) for plugin in self._pipelined)

    def job_valid(self, job: Job) -> ValidateResult | None:
        """The first plugin's reason that the job is invalid, or None."""
        for plugin in self._valid:
            self.calls[plugin.name, "jobValid"] += 1
            invalid = plugin.job_valid(job)
            if invalid is not None:
                self.rejections[plugin.name, "jobValid"] += 1
                return invalid
        return None

    def overused(self, queue: Queue) -> bool:
        for plugin in self._overused:
            self.calls[plugin.name, "overused"] += 1
            if plugin.overused(queue):
                self.rejections[plugin.name, "overused"] += 1
                return True
        return False

    def why_overused(self, queue: Queue) -> str:
        """The message of the first plugin that considers the queue overused."""
        return next((p.why_overused(queue) for p in self._overused if p.overused(queue)), "")

    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool) -> bool:
        for plugin in self._allocatable:
            if not plugin.allocatable(queue, task, reclaiming=reclaiming):
                self.rejections[plugin.name, "allocatable"] += 1
                return False
        return True

    def predicate(self, task: Task, present: BoolColumn) -> BoolColumn:
        """``present``: the rows of the session's nodes."""
        passed = present
        for plugin in self._predicates:
            self.calls[plugin.name, "predicate"] += 1
            passed = passed & plugin.predicate(task)
        return passed

    def rejected_nodes(self, task: Task) -> Counter[str]:
        """The number of nodes that the predicates reject, by reason."""
        counts: Counter[str] = Counter()
        for plugin in self._predicates:
            counts.update(plugin.rejections(task))
        return counts

    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        total: Int64Column | None = None
        for plugin in self._node_orders:
            self.calls[plugin.name, "nodeOrder"] += 1
            scores = plugin.node_order(task, rows)
            total = scores if total is None else total + scores
        return np.zeros(len(rows), np.int64) if total is None else total

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        """The candidates that a task of the same queue may evict."""
        tests = ([p.preemptable(preemptor) for p in tier] for tier in self._preemptable)
        return self._victims(tests, candidates)

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        """The candidates that a task of another queue may evict."""
        tests = ([p.reclaimable(reclaimer) for p in tier] for tier in self._reclaimable)
        return self._victims(tests, candidates)

    def _victims(
        self, tests: Iterable[Sequence[VictimFilter]], candidates: Sequence[Task]
    ) -> list[Task]:
        if self._all_tiers_consent:
            return _unanimous([test for tier in tests for test in tier], candidates)
        return next((_intersection(tier, candidates) for tier in tests if tier), [])

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        """False if no task of the job can pass :meth:`preemptable`."""
        return all(
            plugin.may_lose_to_preemptor(job, preemptor)
            for tier in self._preemptable
            for plugin in tier
        )

    def may_lose_to_reclaimer(self, job: Job, reclaimer: Task) -> bool:
        return all(
            plugin.may_lose_to_reclaimer(job, reclaimer)
            for tier in self._reclaimable
            for plugin in tier
        )


def _enabled(entries: Sequence[TierPlugin], base: type[P], callback: Callback) -> list[P]:
    return [
        entry.plugin
        for entry in entries
        if isinstance(entry.plugin, base) and callback not in entry.disabled
    ]


def _unanimous(tests: Sequence[VictimFilter], candidates: Sequence[Task]) -> list[Task]:
    """The candidates that pass every test, each with the earlier victims gone. Without tests there
    are no victims."""
    if not tests:
        return []
    victims = []
    for candidate in candidates:
        if all(test.allows(candidate) for test in tests):
            victims.append(candidate)
            for test in tests:
                test.take(candidate)
    return victims


def _intersection(tests: Sequence[VictimFilter], candidates: Sequence[Task]) -> list[Task]:
    """kube-batch's rule for the first tier with plugins: each plugin tests all candidates, and
    counts candidates that it rejected as gone, too."""
    chosen = {task.uid: task for task in candidates}
    for test in tests:
        consented = set()
        for candidate in candidates:
            if test.allows(candidate):
                consented.add(candidate.uid)
            test.take(candidate)
        chosen = {uid: task for uid, task in chosen.items() if uid in consented}
    return [*chosen.values()]
