"""Would the pods of a manifest run? Decides them on a state of a journal.

Nothing is recorded. The pods pass the defaults, admission and validation of an API server, and are
then observed by a private copy of the state, on which the scheduler core decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from asched.audit.decision_costs import costs_of_explained
from asched.audit.explain import explain_pending
from asched.audit.explanation import Explanation
from asched.audit.history import Period
from asched.audit.lookup import AuditError, fold_before
from asched.audit.pod_group.examine import explained, find_key
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.timeline import time_of
from asched.audit.whatif.recorded_history import (
    RecordedHistory,
    TraceExtractor,
    recorded_history,
    recorded_scheduler,
)
from asched.cycle.inspect import AttemptOutcome
from asched.fit.change import ChangeTrials, smallest_change
from asched.fit.costs import costs_of, with_added_nodes, with_wait
from asched.fit.forecast import (
    Forecast,
    ForecastSettings,
    PodHistory,
    SampleListener,
    StartingPoint,
    estimate,
    ignore_sample,
)
from asched.fit.forms import (
    MAX_BEST,
    FitAnswer,
    FitVictim,
    NodeCopies,
    StartEstimate,
    WorkloadFit,
)
from asched.fit.manifest import ManifestObject
from asched.fit.pods import AdmittedManifest, AdmittedPods, ManifestPods
from asched.fit.trial import FitTrial, TrialPod
from asched.framework.pod_groups import group_of
from asched.framework.runtime.profile import PluginLoader
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.pricing.prices import Prices
from asched.simulator.trace import WorkloadTrace
from asched.state.checkpoint import checkpoint_of
from asched.state.fold import Fold

MAX_COPIES: Final = 10_000
"""Copies that :attr:`FitQuery.most_copies` counts."""
_MAX_GROUPS: Final = 3


class FitQuery(NamedTuple):
    """What is asked about a manifest."""

    objects: Sequence[ManifestObject]
    copies: int | None = None
    """Replaces the number of pods of the only workload."""
    most_copies: bool = False
    """Count how many copies of the only workload's pod get a node without evictions."""
    unblock: bool = True
    """Search changes for pods that get no node."""
    forecast: ForecastSettings | None = None
    """Estimate when the pods start if they do not run now."""
    prices: Prices | None = None
    """Compute costs."""


async def end_of(journal: JournalStore, at_ns: int | None, last_seq: int | None) -> int:
    """The last record that counts: at a time in nanoseconds since the epoch, or given.

    Raises AuditError if there is none.
    """
    head = (await journal.head()).seq
    if last_seq is not None:
        if not 1 <= last_seq <= head:
            raise AuditError(f"no record {last_seq}: the journal ends with record {head}")
        return last_seq
    end = head if at_ns is None else await last_seq_at(journal, at_ns)
    if end < 1:
        raise AuditError("the journal has no records up to that time")
    return end


async def fit(
    journal: JournalStore,
    query: FitQuery,
    load: PluginLoader,
    *,
    at_ns: int | None = None,
    last_seq: int | None = None,
    on_sample: SampleListener = ignore_sample,
) -> FitAnswer:
    """Decides a manifest on the state at a time, or after a record.

    ``last_seq`` has precedence over ``at_ns``, nanoseconds since the epoch. Raises
    :class:`~asched.fit.manifest.ManifestError` for a manifest that an API server rejects,
    :class:`AuditError`, :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    end = await end_of(journal, at_ns, last_seq)
    fold = await fold_before(journal, load, end + 1)
    date_ns, settings = fold.state.date_ns, query.forecast
    decision = _Decision(fold, query, load, end)
    answer = decision.answer()
    if settings is None or answer.fits:
        return answer
    ends_here = end == (await journal.head()).seq
    period = Period(0, None if ends_here else date_ns)
    history = await recorded_history(journal, load, period)
    estimated = replace(answer, estimate=decision.estimate(history, settings, on_sample))
    return with_wait(estimated)


def fit_on(fold: Fold, query: FitQuery, load: PluginLoader, seq: int) -> FitAnswer:
    """As :func:`fit` without an estimate, on a state, which must be a private copy; ``seq`` is its
    last record."""
    return _Decision(fold, query, load, seq).answer()


class _Decision:
    """Decides one manifest."""

    def __init__(self, fold: Fold, query: FitQuery, load: PluginLoader, seq: int) -> None:
        self._query, self._load, self._seq = query, load, seq
        self._fold, self._state = fold, fold.state
        self._at = time_of(fold.state.date_ns)
        self._pods = ManifestPods(fold.state, query.objects)
        copies = 1 if query.most_copies else query.copies
        self._manifest: AdmittedManifest = self._pods.admitted(copies)
        self._notes = list(self._manifest.notes)
        self._trial = FitTrial(fold, self._manifest.claim_templates)
        self._checkpoint = b""
        """The state with the objects of the manifest, without its pods."""
        self._initial: WorkloadTrace | None = None
        """The same as a trace, for an estimate."""

    def estimate(
        self, history: RecordedHistory, settings: ForecastSettings, on_sample: SampleListener
    ) -> StartEstimate:
        """When all pods of the manifest run. After :meth:`answer`."""
        assert self._initial is not None, "the query has asked for it"
        manifest, run = self._manifest, history.recorded
        scheduler = recorded_scheduler(self._state, run)
        start = StartingPoint(self._initial, scheduler, manifest.claim_templates)
        known = PodHistory(run.pods, run.begin_ns, start.now_ns)
        wanted = [pod.uid for pod in manifest.pods]
        wanted += [self._state.pods[key].info.uid for key in manifest.waiting]
        forecast = Forecast(start, known, settings, self._load, on_sample)
        return estimate(forecast, manifest.pods, wanted, settings)

    def answer(self) -> FitAnswer:
        trial, manifest = self._trial, self._manifest
        if trial.without_extenders():
            self._notes.append("extenders are not called")
        for item in manifest.objects:
            trial.observe(item)
        for workload in manifest.workloads:
            for item in workload.objects:
                trial.observe(item)
        if self._query.unblock:
            self._checkpoint = checkpoint_of(self._state)
        if self._query.forecast is not None:
            now_ns = self._state.now_ns
            self._initial = TraceExtractor(self._fold, now_ns).trace(now_ns)
        for key in manifest.waiting:
            trial.follow(key)
        for pod in manifest.pods:
            trial.add(pod)
        keys = [pod.key for pod in manifest.pods] or list(manifest.waiting)
        first = explain_pending(self._state, self._load, keys[0], unblock=False)
        if self._query.prices is not None:
            costs = costs_of_explained(first, self._state, self._query.prices)
            first = replace(first, costs=costs)
        if self._query.most_copies:
            return self._most_copies(first)
        trial.run()
        return self._decided(first, trial.results())

    def _decided(self, first: Explanation, results: list[TrialPod]) -> FitAnswer:
        missing = [result for result in results if not result.node]
        fits = not missing
        feasible = first.outcome == AttemptOutcome.SCHEDULED.value
        best = tuple(node.name for node in first.nodes if feasible and node.rank == 1)
        workloads, prices = tuple(self._workloads(results)), self._query.prices
        found = FitAnswer(
            seq=self._seq,
            at=self._at,
            fits=fits,
            sentence="",
            nodes=best[:MAX_BEST],
            workloads=workloads,
            victims=tuple(self._victims()),
            change=None,
            notes=tuple(dict.fromkeys(self._notes)),
            explanation=first,
            # Before a search for changes, which uses up the state.
            costs=None if prices is None else costs_of(results, self._state, prices),
        )
        if not missing:
            return replace(found, sentence=_fitting_sentence(found, best))
        return self._explained(found, missing)

    def _explained(self, found: FitAnswer, missing: list[TrialPod]) -> FitAnswer:
        """The answer with the reasons of the pods without a node."""
        unblock, state = self._query.unblock, self._state
        groups = self._groups(missing)
        first = explain_pending(state, self._load, missing[0].key, unblock=unblock)
        found = replace(found, groups=groups, explanation=first)
        found = replace(found, sentence=_missing_sentence(found, missing[0]))
        if not unblock:
            return found
        change = smallest_change(first, groups, self._change_trials(missing))
        found = replace(found, change=change)
        prices = self._query.prices
        return found if prices is None else with_added_nodes(found, state, prices)

    def _change_trials(self, missing: Sequence[TrialPod]) -> ChangeTrials | None:
        if self._manifest.waiting:
            return None
        pods = [self._state.pods[one.key].info for one in missing]
        return ChangeTrials(self._checkpoint, self._load, self._manifest, pods)

    def _groups(self, missing: list[TrialPod]) -> tuple[PodGroupExplanation, ...]:
        keys = dict.fromkeys(group_of(self._state.pods[one.key].info.pod) for one in missing)
        named = [key for key in keys if key is not None]
        if len(named) > _MAX_GROUPS:
            self._notes.append(f"{len(named)} PodGroups do not run; the first are explained")
        return tuple(
            explained(self._state, self._load, self._seq, group, unblock=self._query.unblock)
            for each in named[:_MAX_GROUPS]
            if (group := find_key(self._state, each.key)) is not None
        )

    def _workloads(self, results: list[TrialPod]) -> list[WorkloadFit]:
        if self._query.most_copies:
            return [_workload(self._manifest.workloads[0].title, results)]
        by_key = {result.key: result for result in results}
        sets = [(each.title, [pod.key for pod in each.pods]) for each in self._manifest.workloads]
        if self._manifest.waiting:
            sets.append(("pods of the cluster", list(self._manifest.waiting)))
        return [_workload(title, [by_key[key] for key in keys]) for title, keys in sets]

    def _victims(self) -> list[FitVictim]:
        victims = []
        for evicted in self._trial.evicted:
            namespace, _, name = evicted.key.partition("/")
            victims.append(
                FitVictim(namespace, name, evicted.priority, evicted.node, evicted.preemptor)
            )
        return victims

    # -- how many copies fit --------------------------------------------------------------------

    def _most_copies(self, first: Explanation) -> FitAnswer:
        """Adds copies that never preempt until one gets no node."""
        workload, trial = self._manifest.workloads[0], self._trial
        one = workload.pods[0]
        trial.remove(one)
        results, message = self._fitting_copies(workload)
        if not results:
            trial.add(one)
            trial.run()
            return self._decided(first, trial.results())
        self._notes.append("copies are counted without evictions")
        counted = _workload(workload.title, results)
        number = f"at least {MAX_COPIES}" if len(results) == MAX_COPIES else str(len(results))
        copies = "copy fits" if len(results) == 1 else "copies fit"
        nodes = len(counted.nodes)
        places = f" on {nodes} node{'s' if nodes > 1 else ''}"
        why = f" The next one does not: {_plain(message)}." if message else ""
        sentence = f"{number} {copies}{places}.{why}"
        return replace(self._decided(first, results), sentence=sentence)

    def _fitting_copies(self, workload: AdmittedPods) -> tuple[list[TrialPod], str]:
        """The copies with a node, and why the next one gets none."""
        trial, results, more = self._trial, list[TrialPod](), workload
        for index in range(MAX_COPIES):
            if index:
                more = self._pods.further_copy(workload, index)
                for item in more.objects:
                    trial.observe(item)
            pod = more.pods[0]
            pod = replace(pod, spec=replace(pod.spec, preemption_policy="Never"))
            trial.add(pod)
            trial.run()
            last = trial.result(pod.key)
            if not last.node:
                trial.remove(pod)
                return results, last.message
            results.append(last)
        return results, ""


def _workload(title: str, results: list[TrialPod]) -> WorkloadFit:
    nodes = Counter(result.node for result in results if result.node)
    message = next((_plain(result.message) for result in results if not result.node), "")
    return WorkloadFit(
        object=title,
        pods=len(results),
        placed=nodes.total(),
        evicting=sum(bool(result.node) and result.evicts for result in results),
        nodes=tuple(NodeCopies(name, nodes[name]) for name in sorted(nodes)),
        message=message,
    )


def _fitting_sentence(found: FitAnswer, best: tuple[str, ...]) -> str:
    pods = sum(workload.pods for workload in found.workloads)
    nodes = [each.node for workload in found.workloads for each in workload.nodes]
    if found.victims:
        number = len(found.victims)
        after = f"after {'the eviction' if number == 1 else 'evictions'} of {number} pods"
        after = after.replace("of 1 pods", "of 1 pod")
        if pods == 1:
            return f"The pod would run on {nodes[0]} {after}."
        return f"All {pods} pods would run {after}."
    if pods > 1:
        return f"All {pods} pods would run, on {len(dict.fromkeys(nodes))} nodes."
    if not best:
        return f"The pod would run on {nodes[0]}."
    where = best[0] if len(best) == 1 else f"one of {len(best)} nodes with the best score"
    explanation = found.explanation
    return (
        f"The pod would run on {where}; {explanation.feasible} of {explanation.nodes_total} nodes"
        " fit."
    )


def _missing_sentence(found: FitAnswer, missing: TrialPod) -> str:
    explanation = found.explanation
    reason = _plain(missing.message)
    pods = sum(workload.pods for workload in found.workloads)
    placed = sum(workload.placed for workload in found.workloads)
    if explanation.outcome == AttemptOutcome.GATED.value:
        gate = "; ".join(", ".join(one.reasons) for one in explanation.pre_filter)
        what = "The pod would be" if pods == 1 else f"{pods - placed} of {pods} pods would be"
        return f"{what} gated: {_plain(explanation.message) or gate}."
    if found.groups and len(found.groups) == 1:
        reason = found.groups[0].sentence
    if pods == 1:
        return f"The pod would not run: {reason}."
    return f"{placed} of {pods} pods would run; the others would not: {reason}."


def _plain(message: str) -> str:
    return " ".join(message.split()).rstrip(".")
