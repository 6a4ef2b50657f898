"""What the plugins of a session say together, tier by tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from asched.batch.corrections import Correction
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.session_objects import Job, Queue, Task
from asched.framework.session_plugins import (
    AllocatablePlugin,
    ClosingPlugin,
    EventHandlerPlugin,
    Invalid,
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
    VictimTest,
)
from asched.framework.sessions import Callback

P = TypeVar("P", bound=SessionPlugin)


class TierPlugin(NamedTuple):
    """A plugin's place in a tier. A plugin named twice has two places and is one instance."""

    plugin: SessionPlugin
    disabled: frozenset[Callback]


class Tiers:
    """Asks the plugins and combines their answers, as kube-batch does."""

    def __init__(
        self, tiers: Sequence[Sequence[TierPlugin]], corrections: frozenset[Correction]
    ) -> None:
        self._tiers = tiers
        self._all_tiers_consent = Correction.CONSENT_OF_ALL_TIERS in corrections
        self.calls: Counter[tuple[str, str]] = Counter()
        """How often a plugin was asked, by its name and the callback."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        every = [seat for tier in tiers for seat in tier]
        self.plugins = [*{id(seat.plugin): seat.plugin for seat in every}.values()]
        self.event_handlers = [p for p in self.plugins if isinstance(p, EventHandlerPlugin)]
        self.closing = [p for p in self.plugins if isinstance(p, ClosingPlugin)]
        self._job_orders = _seated(every, JobOrderPlugin, Callback.JOB_ORDER)
        self._queue_orders = _seated(every, QueueOrderPlugin, Callback.QUEUE_ORDER)
        self._task_orders = _seated(every, TaskOrderPlugin, Callback.TASK_ORDER)
        self._ready = _seated(every, JobReadyPlugin, Callback.JOB_READY)
        self._pipelined = _seated(every, JobPipelinedPlugin, Callback.JOB_PIPELINED)
        self._predicates = _seated(every, PredicatePlugin, Callback.PREDICATE)
        self._node_orders = _seated(every, NodeOrderPlugin, Callback.NODE_ORDER)
        # These cannot be switched off.
        self._overused = [p for p in self.plugins if isinstance(p, OverusedPlugin)]
        self._allocatable = [p for p in self.plugins if isinstance(p, AllocatablePlugin)]
        self._valid = [p for p in self.plugins if isinstance(p, JobValidPlugin)]
        self._preemptable = [_seated(t, PreemptablePlugin, Callback.PREEMPTABLE) for t in tiers]
        self._reclaimable = [_seated(t, ReclaimablePlugin, Callback.RECLAIMABLE) for t in tiers]

    # -- order --------------------------------------------------------------------------------

    def job_order(self, job: Job) -> tuple[Any, ...]:
        own = [plugin.job_order(job) for plugin in self._job_orders]
        return (*own, job.created_s, job.id)

    def queue_order(self, queue: Queue) -> tuple[Any, ...]:
        own = [plugin.queue_order(queue) for plugin in self._queue_orders]
        return (*own, queue.created_s, queue.name)

    def task_order(self, task: Task) -> tuple[Any, ...]:
        own = [plugin.task_order(task) for plugin in self._task_orders]
        return (*own, task.created_s, task.uid)

    # -- jobs and queues ----------------------------------------------------------------------

    def job_ready(self, job: Job) -> bool:
        return all(plugin.job_ready(job) for plugin in self._ready)

    def job_pipelined(self, job: Job) -> bool:
        return all(plugin.job_pipelined(job) for plugin in self._pipelined)

    def job_valid(self, job: Job) -> Invalid | None:
        """The first objection."""
        for plugin in self._valid:
            self.calls[plugin.name, "jobValid"] += 1
            invalid = plugin.job_valid(job)
            if invalid is not None:
                self.refusals[plugin.name, "jobValid"] += 1
                return invalid
        return None

    def overused(self, queue: Queue) -> bool:
        for plugin in self._overused:
            self.calls[plugin.name, "overused"] += 1
            if plugin.overused(queue):
                self.refusals[plugin.name, "overused"] += 1
                return True
        return False

    def why_overused(self, queue: Queue) -> str:
        """The words of the first plugin that finds it so."""
        return next((p.why_overused(queue) for p in self._overused if p.overused(queue)), "")

    def allocatable(self, queue: Queue, task: Task, *, reclaiming: bool) -> bool:
        for plugin in self._allocatable:
            if not plugin.allocatable(queue, task, reclaiming=reclaiming):
                self.refusals[plugin.name, "allocatable"] += 1
                return False
        return True

    # -- nodes --------------------------------------------------------------------------------

    def predicate(self, task: Task, everywhere: BoolColumn) -> BoolColumn:
        """``everywhere``: the rows that are in question at all."""
        passed = everywhere
        for plugin in self._predicates:
            self.calls[plugin.name, "predicate"] += 1
            passed = passed & plugin.predicate(task)
        return passed

    def refused_nodes(self, task: Task) -> Counter[str]:
        """How many nodes the predicates refuse for each reason."""
        counts: Counter[str] = Counter()
        for plugin in self._predicates:
            counts.update(plugin.refusals(task))
        return counts

    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        total: Int64Column | None = None
        for plugin in self._node_orders:
            self.calls[plugin.name, "nodeOrder"] += 1
            scores = plugin.node_order(task, rows)
            total = scores if total is None else total + scores
        return np.zeros(len(rows), np.int64) if total is None else total

    # -- victims ------------------------------------------------------------------------------

    def preemptable(self, preemptor: Task, candidates: Sequence[Task]) -> list[Task]:
        """Who of the candidates may be evicted for the task by a job of the same queue."""
        if self._all_tiers_consent:
            tests = [p.preemptable(preemptor) for tier in self._preemptable for p in tier]
            return _unanimous(tests, candidates)
        for tier in self._preemptable:
            if tier:
                return _intersection([p.preemptable(preemptor) for p in tier], candidates)
        return []

    def may_lose_to_preemptor(self, job: Job, preemptor: Task) -> bool:
        """Whether it is worth asking about tasks of the job, if all tiers have a say."""
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

    def reclaimable(self, reclaimer: Task, candidates: Sequence[Task]) -> list[Task]:
        """Who of the candidates may be evicted for the task of another queue."""
        if self._all_tiers_consent:
            tests = [p.reclaimable(reclaimer) for tier in self._reclaimable for p in tier]
            return _unanimous(tests, candidates)
        for tier in self._reclaimable:
            if tier:
                return _intersection([p.reclaimable(reclaimer) for p in tier], candidates)
        return []


def _seated(seats: Sequence[TierPlugin], base: type[P], callback: Callback) -> list[P]:
    return [
        seat.plugin
        for seat in seats
        if isinstance(seat.plugin, base) and callback not in seat.disabled
    ]


def _unanimous(tests: Sequence[VictimTest], candidates: Sequence[Task]) -> list[Task]:
    """One by one, each with those before it gone. Nobody goes where nobody has a say."""
    if not tests:
        return []
    victims = []
    for candidate in candidates:
        if all(test.consents(candidate) for test in tests):
            victims.append(candidate)
            for test in tests:
                test.take(candidate)
    return victims


def _intersection(tests: Sequence[VictimTest], candidates: Sequence[Task]) -> list[Task]:
    """As kube-batch: the first tier where a plugin has a say decides, each of its plugins looks at
    all candidates, and counts those that it refused as gone too."""
    chosen = {task.uid: task for task in candidates}
    for test in tests:
        consented = set()
        for candidate in candidates:
            if test.consents(candidate):
                consented.add(candidate.uid)
            test.take(candidate)
        chosen = {uid: task for uid, task in chosen.items() if uid in consented}
    return [*chosen.values()]
