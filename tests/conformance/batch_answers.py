"""The results of asched's sessions, in the form of the recorded ``expect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from asched.batch.nodes import FloatColumn
from asched.batch.plugins.shares import Drf, Proportion
from asched.batch.registry import SessionRegistry
from asched.batch.session import SessionClosing, SessionRun
from asched.batch.session_volumes import VolumeClaims
from asched.batch.snapshot import Cache
from asched.batch.trace import (
    ActionTrace,
    Trace,
    TracedBackfill,
    TracedDecision,
    TracedPlacement,
    TracedPreemption,
)
from asched.config.batch import ConfError, SessionConf, parse_conf
from asched.framework.cluster import Eviction, PodRef
from asched.framework.resource_vector import ResourceVector
from asched.framework.session_objects import Job, Task, TaskStatus
from asched.framework.session_plugins import SessionPlugin
from asched.framework.sessions import (
    Compatibility,
    SessionOutcome,
    SessionSpec,
    session_id,
)
from asched.state.cluster import PlacementState
from tests.conformance.batch_documents import BatchDocument, World

Answer = dict[str, Any]
P = TypeVar("P", bound=SessionPlugin)


class FaultyVolumes(VolumeClaims):
    """Volumes that fail because of the document's faults."""

    def __init__(self, faults: Mapping[str, list[str]]) -> None:
        self._faults = faults

    def reserve(self, task: Task, node: str) -> str:
        fails = task.key in self._faults.get("allocateVolumes", ())
        return "allocate volumes failed" if fails else ""

    def bind(self, task: Task) -> str:
        return "bind volumes failed" if task.key in self._faults.get("bindVolumes", ()) else ""


class BatchLaboratory:
    """A recorded cluster, and sessions on it."""

    def __init__(
        self,
        document: BatchDocument,
        registry: SessionRegistry,
        compatibility: Compatibility = Compatibility.KUBE_BATCH,
        seed: int = 1,
    ) -> None:
        self._document = document
        self._registry = registry
        self._compatibility = compatibility
        self._seed = seed

    def answers(self) -> Iterator[Answer]:
        """The result of each session; each starts where the previous one ended."""
        try:
            conf = parse_conf(self._document.conf, self._registry.action_names)
        except ConfError as error:
            answer: Answer = {"loadError": str(error), "summary": {"loadError": str(error)}}
            for _ in self._document.expected:
                yield answer
            return
        spec = self.spec(conf)
        world = self._document.world(spec, self._seed)
        for number in range(len(self._document.expected)):
            _, outcome, answer = self.hold(world, conf, spec, number)
            yield answer
            _carry_out(world, outcome)

    def spec(self, conf: SessionConf) -> SessionSpec:
        return SessionSpec(
            self._document.scheduler_name,
            conf.actions,
            conf.tiers,
            default_queue=self._document.default_queue,
            compatibility=self._compatibility,
        )

    def hold(
        self, world: World, conf: SessionConf, spec: SessionSpec, number: int
    ) -> tuple[SessionRun, SessionOutcome, Answer]:
        """A session, its result, and the result in the recorded form."""
        snapshot = Cache(world.state, spec).snapshot(world.shrunk)
        trace = Trace()
        run = SessionRun(
            world.state,
            spec,
            self._registry,
            number,
            snapshot=snapshot,
            volumes=FaultyVolumes(self._document.faults),
            trace=trace,
        )
        view = _View(run)
        before = {
            "nodes": view.nodes(), "jobs": view.jobs_before(), "queues": view.queues(),
        }  # fmt: skip
        orders = {"queueOrder": view.queue_order(), "jobOrder": view.job_order()}
        run.run_actions()
        closing = run.closing()
        outcome = run.outcome(closing)
        known = set(self._registry.plugin_names)
        unknown = [name for name in conf.plugin_names if name not in known]
        answer = {
            "actions": [*conf.actions],
            "tiers": [[_option(option) for option in tier] for tier in conf.tiers],
            **({"unknownPlugins": unknown} if unknown else {}),
            **orders,
            **_sent(outcome, self._document.faults),
            "pods": view.pods(),
            "jobs": {
                job: {**before["jobs"][job], **after}
                for job, after in view.jobs_after(
                    closing, session_id(spec.scheduler_name, number)
                ).items()
            },
            "queues": {
                name: {"before": before["queues"][name], "after": after}
                for name, after in view.queues().items()
            },
            "nodes": {
                name: {"before": before["nodes"][name], **after, "tasks": view.tasks_on(name)}
                for name, after in view.nodes().items()
            },
            "ignoredJobs": dict(snapshot.ignored_jobs),
            "ignoredNodes": dict(snapshot.ignored_nodes),
            **_traces(trace.actions),
            "bindErrors": dict(run.session.changes.refused_binds),
            "summary": _summary(run, outcome, closing),
        }
        return run, outcome, answer


def _carry_out(world: World, outcome: SessionOutcome) -> None:
    """The changes of kube-batch's cache by a session without external reactions."""
    state = world.state
    for bind in outcome.binds:
        entry = state.pods[bind.pod]
        state.nodes.add_pod(bind.node, entry.info)
        entry.node, entry.placement_state = bind.node, PlacementState.ASSUMED
    for eviction in outcome.evictions:
        victim = PodRef(eviction.pod, eviction.uid)
        preemptor = PodRef(eviction.preemptor, eviction.preemptor_uid)
        state.evictions.begin(Eviction(victim, preemptor, eviction.node))


class _View:
    """The state of a session, described."""

    def __init__(self, run: SessionRun) -> None:
        self._session = run.session
        self._drf = self._plugin(Drf)
        self._proportion = self._plugin(Proportion)

    def _plugin(self, kind: type[P]) -> P | None:
        for plugin in self._session.tiers.plugins:
            if isinstance(plugin, kind):
                return plugin
        return None

    def queue_order(self) -> list[str]:
        names = {job.queue for job in self._session.jobs.values()}
        queues = [self._session.queues[name] for name in names]
        return [queue.name for queue in sorted(queues, key=self._session.queue_order)]

    def job_order(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for job in sorted(self._session.jobs.values(), key=self._session.job_order):
            found.setdefault(job.queue, []).append(job.id)
        return found

    def jobs_before(self) -> dict[str, Answer]:
        session = self._session
        found: dict[str, Answer] = {}
        for job in session.jobs.values():
            pending = sorted(job.with_status(TaskStatus.PENDING), key=session.task_order)
            found[job.id] = {
                "name": job.name,
                "namespace": job.namespace,
                "queue": job.queue,
                "minAvailable": job.min_available,
                "priority": job.priority,
                "shadow": job.shadow,
                "valid": self._valid(job),
                "readyBefore": session.job_ready(job),
                "pipelinedBefore": session.job_pipelined(job),
                "pendingTaskOrder": [task.key for task in pending],
            }
            if self._drf is not None:
                found[job.id]["drfShareBefore"] = self._drf.holdings[job.id].share
        return found

    def _valid(self, job: Job) -> Answer:
        invalid = self._session.tiers.job_valid(job)
        if invalid is None:
            return {"pass": True}
        return {"pass": False, "reason": invalid.reason, "message": invalid.message}

    def jobs_after(self, closing: SessionClosing, transition_id: str) -> dict[str, Answer]:
        session = self._session
        found: dict[str, Answer] = {}
        for job in session.jobs.values():
            status = closing.outcome_of(job)
            found[job.id] = {
                "ready": session.job_ready(job),
                "pipelined": session.job_pipelined(job),
                "tasks": _counts(job),
                "podGroupStatus": {
                    "phase": status.phase.value,
                    "running": status.running,
                    "succeeded": status.succeeded,
                    "failed": status.failed,
                    "conditions": [
                        {
                            "type": condition.type,
                            "status": condition.status,
                            "reason": condition.reason,
                            "message": condition.message,
                            "fromThisSession": condition.transition_id == transition_id,
                        }
                        for condition in status.conditions
                    ],
                },
            }
            if self._drf is not None:
                holding = self._drf.holdings[job.id]
                found[job.id]["drfShareAfter"] = holding.share
                found[job.id]["drfAllocatedAfter"] = _amounts(holding.allocated)
        return found

    def queues(self) -> dict[str, Answer]:
        if self._proportion is None:
            return {}
        found = {}
        for name, account in self._proportion.accounts.items():
            queue = self._session.queues[name]
            found[name] = {
                "weight": queue.weight,
                "deserved": _amounts(account.deserved),
                "allocated": _amounts(account.allocated),
                "request": _amounts(account.request),
                "share": account.share,
                "overused": self._proportion.overused(queue),
            }
        return found

    def nodes(self) -> dict[str, Answer]:
        nodes = self._session.session_nodes
        return {
            name: {
                "idle": _row(nodes.idle, row),
                "used": _row(nodes.used, row),
                "releasing": _row(nodes.releasing, row),
            }
            for row, name in enumerate(nodes.names)
            if nodes.present[row]
        }

    def tasks_on(self, node: str) -> list[str]:
        nodes = self._session.session_nodes
        tasks = nodes.tasks[nodes.names.index(node)].values()
        return sorted(f"{task.key} {nodes.charged_as[task.uid].value}" for task in tasks)

    def pods(self) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        for job in self._session.jobs.values():
            for task in job.tasks.values():
                found[task.key] = {"job": job.id, "status": task.status.value}
                if task.node:
                    found[task.key]["node"] = task.node
        return found


def _option(option: Any) -> Answer:
    described: Answer = {"name": option.name}
    if option.disabled:
        described["disabled"] = sorted(flag.value for flag in option.disabled)
    if option.arguments:
        described["arguments"] = dict(option.arguments)
    return described


def _amounts(vector: ResourceVector) -> dict[str, float]:
    return vector.amounts()


def _row(columns: Mapping[str, FloatColumn], row: int) -> dict[str, float]:
    return {name: float(column[row]) for name, column in columns.items()}


def _counts(job: Job) -> dict[str, int]:
    return dict(Counter(task.status.value for task in job.tasks.values()))


def _sent(outcome: SessionOutcome, faults: Mapping[str, list[str]]) -> Answer:
    binds = {bind.pod: bind.node for bind in outcome.binds}
    evictions = {eviction.pod: eviction.reason.value for eviction in outcome.evictions}
    failed = [pod for pod in binds if pod in faults.get("bind", ())]
    failed += [pod for pod in evictions if pod in faults.get("evict", ())]
    return {
        "binds": binds,
        "evictions": evictions,
        "resync": sorted(failed),
        "events": sorted(map(str, outcome.events)),
        "podConditions": {
            pod.pod: f"PodScheduled=False Unschedulable: {pod.message}"
            for pod in outcome.unschedulable
        },
        "podGroupUpdates": sorted(group.group for group in outcome.groups),
    }


def _traces(actions: list[ActionTrace]) -> Answer:
    """By action; a repeated action is numbered."""
    decisions: Answer = {}
    traces: Answer = {}
    for position, action in enumerate(actions, 1):
        name = f"{action.action}#{position}" if action.action in traces else action.action
        traces[name] = action.lines
        if action.decisions:
            decisions[name] = {pod: _decision(made) for pod, made in action.decisions.items()}
    return {"decisions": decisions, "trace": traces}


def _decision(decision: TracedDecision) -> Answer:
    match decision:
        case TracedPlacement(scores, best, chosen):
            return {
                "scores": dict(scores),
                "best": [*best],
                "unique": len(best) == 1,
                "chosen": chosen,
            }
        case TracedBackfill(feasible):
            return {"feasible": [*feasible], "unique": len(feasible) == 1}
        case TracedPreemption(scores, order, searches):
            found: Answer = {
                "victims": {
                    node: {"candidates": [*said.candidates], "victims": [*said.victims]}
                    for node, said in searches.items()
                }
            }
            if order:
                found.update({"scores": dict(scores), "nodeOrder": [*order]})
            return found


def _summary(run: SessionRun, outcome: SessionOutcome, closing: SessionClosing) -> Answer:
    jobs = run.session.jobs
    job_of = {task.key: job for job in jobs.values() for task in job.tasks.values()}
    bound = [bind.pod for bind in outcome.binds]
    evicted = [eviction.pod for eviction in outcome.evictions]
    return {
        "boundByJob": dict(Counter(job_of[pod].id for pod in bound)),
        "boundByQueue": dict(Counter(job_of[pod].queue for pod in bound)),
        "evictedByJob": dict(Counter(job_of[pod].id for pod in evicted)),
        "statusByJob": {job.id: _counts(job) for job in jobs.values()},
        "phaseByJob": {job.id: closing.outcome_of(job).phase.value for job in jobs.values()},
        "boundPods": sorted(bound),
        "evictedPods": sorted(evicted),
        "totalBound": len(bound),
        "totalEvicted": len(evicted),
    }
