"""asched's answers to the cases of a document, in the form of the recorded ``expect``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.registry import PluginRegistry
from asched.config.resolve import resolve
from asched.cycle.attempt import Attempt
from asched.cycle.feasible_nodes import FeasibleNodes
from asched.cycle.inspect import AttemptOutcome, Inspection, PreFilterInspection, inspect
from asched.cycle.post_filter import RejectedNodeStatuses
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import Profile
from asched.framework.status import Code, Status
from asched.model.pod import DEFAULT_SCHEDULER_NAME
from asched.model.quantity import NS_PER_S
from asched.model.resources import Resource
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ObjectDeleted, ObjectObserved, ProfilesLoaded, TurnStarted
from tests.conformance.device_answers import DeviceLaboratory
from tests.conformance.documents import Case, Document
from tests.framework.decoding import decode_configuration

Answer = dict[str, Any]

_RECORDED_NS = 1_767_225_600 * NS_PER_S


class Laboratory:
    """A document's cluster and profile. Every case starts with the recorded cluster."""

    def __init__(self, document: Document, registry: PluginRegistry) -> None:
        """Raises ConfigurationError for an invalid configuration."""
        self._document = document
        self._state = ClusterState()
        self._fold = Fold(self._state, registry.load)
        config = KubeSchedulerConfiguration()
        if document.config is not None:
            config = decode_configuration(document.config)
        self._fold.apply(ProfilesLoaded(resolve(config, registry)))
        for resource in Resource:
            for seen in document.objects(resource):
                self._fold.apply(ObjectObserved(seen))
        self._devices = DeviceLaboratory(document, self._fold) if document.has_devices else None
        if self._devices is not None:
            # Time stamps of allocations are decades before or after this.
            self._fold.apply(TurnStarted(_RECORDED_NS))

    def answers(self) -> Iterator[tuple[Case, Answer]]:
        """Each case with asched's answer."""
        for case in self._document.cases:
            # As in the recording, a pod with a node name counts as assigned.
            self._fold.apply(ObjectObserved(case.pod))
            yield case, self._answer(PodInfo(case.pod))
            self._fold.apply(ObjectDeleted("Pod", case.pod.key, case.pod.uid))

    def _answer(self, pod: PodInfo) -> Answer:
        state = self._state
        profile = state.profiles[DEFAULT_SCHEDULER_NAME]
        inspection = inspect(state, profile, pod)
        answer: Answer = {"outcome": inspection.outcome.value, "feasible": [*inspection.feasible]}
        if inspection.pre_enqueue:
            answer["preEnqueue"] = _by_plugin(inspection.pre_enqueue)
        answer.update(_pre_filter(inspection))
        answer.update(_filter(inspection))
        if inspection.outcome is AttemptOutcome.SCHEDULED:
            answer.update(_score(inspection))
        elif inspection.outcome in (AttemptOutcome.UNSCHEDULABLE, AttemptOutcome.ERROR):
            answer["message"] = inspection.message
        if self._devices is not None:
            answer.update(self._device_answers(self._devices, inspection, pod))
        elif inspection.outcome is AttemptOutcome.UNSCHEDULABLE and inspection.nodes:
            answer.update(_preemption(state, profile, pod))
        return answer

    def _device_answers(
        self, devices: DeviceLaboratory, inspection: Inspection, pod: PodInfo
    ) -> Answer:
        profile = self._state.profiles[DEFAULT_SCHEDULER_NAME]
        if inspection.outcome is AttemptOutcome.UNSCHEDULABLE:
            return {"postFilter": devices.post_filter(profile, pod)}
        if inspection.outcome is AttemptOutcome.SCHEDULED:
            return {"reserve": devices.reserve(profile, pod, inspection)}
        return {}


def _status(status: Status) -> list[Any]:
    return [status.code.title, [*status.reasons]]


def _as_reported(status: Status) -> Status:
    """The status with the text of the framework."""
    if status.code is not Code.ERROR:
        return status
    text = f'running "{status.plugin}" filter plugin: {status.message}'
    return Status.error(text).by(status.plugin)


def _by_plugin(statuses: Mapping[str, Status]) -> dict[str, Any]:
    return {name: _status(status) for name, status in statuses.items()}


def best_nodes(inspection: Inspection) -> tuple[str, ...]:
    """The nodes with the highest total, sorted."""
    best = max(inspection.total, default=0)
    totals = zip(inspection.feasible, inspection.total, strict=True)
    return tuple(name for name, total in totals if total == best)


def pre_filter_rejections(found: PreFilterInspection) -> dict[str, Status]:
    """By plugin. Empty if only the combination of several plugins' nodes rejects the pod."""
    disjoint = found.node_names is not None and not found.node_names
    return {} if found.status is None or disjoint else {found.status.plugin: found.status}


def _pre_filter(inspection: Inspection) -> Answer:
    found = inspection.pre_filter
    if found is None:
        return {}
    names, restricted_by = found.node_names, found.restricted_by
    if found.status is not None and names:
        # A rejection hides the nodes of plugins before it.
        names, restricted_by = None, ()
    answer: Answer = {"nodeNames": None if names is None else [*names]}
    if found.skipped:
        answer["skipped"] = [*found.skipped]
    if rejections := pre_filter_rejections(found):
        answer["plugins"] = _by_plugin(rejections)
    if restricted_by:
        answer["restrictedBy"] = [*restricted_by]
    if found.status is not None:
        answer["status"] = [*_status(found.status), found.status.plugin]
    return {"preFilter": answer}


def _filter(inspection: Inspection) -> Answer:
    found = inspection.filter
    if found is None:
        return {}
    answer: Answer = {}
    if found.plugins:
        answer["plugins"] = {name: _by_plugin(nodes) for name, nodes in found.plugins.items()}
    if found.nodes:
        answer["nodes"] = {
            node: [status.plugin, *_status(_as_reported(status))]
            for node, status in found.nodes.items()
        }
    return {"filter": answer}


def _score(inspection: Inspection) -> Answer:
    answer: Answer = {
        "score": {
            name: {
                "weight": scores.weight,
                "raw": [*scores.raw],
                "normalized": [*scores.normalized],
            }
            for name, scores in inspection.scores.items()
        },
        "total": [*inspection.total],
        "best": [*best_nodes(inspection)],
        "preScore": {"skipped": [*inspection.score_skipped]} if inspection.score_skipped else {},
    }
    if inspection.nominated_node_used:
        answer["nominatedNodeUsed"] = True
    return answer


def _preemption(state: ClusterState, profile: Profile, pod: PodInfo) -> Answer:
    """The dry run of all potential nodes, if DefaultPreemption runs."""
    screening = Attempt(state, profile, pod, ShapeCache(state.nodes)).find_feasible_nodes(
        limit_nodes=False
    )
    plugin = _reached(profile, pod, screening, refused := RejectedNodeStatuses(state, screening))
    if plugin is None:
        return {}
    names, rows = state.nodes.names, refused.rows(Code.UNSCHEDULABLE)
    reason = plugin.ineligible(pod, refused)
    answer: Answer = {
        "eligible": not reason,
        "potentialNodes": sorted(names[row] for row in rows.tolist()),
        "candidates": {},
        "nominated": [],
    }
    if reason:
        answer["reason"] = reason
        return {"preemption": answer}
    run = plugin.dry_run(screening.state, pod, rows)
    answer["candidates"] = {
        candidate.node: {
            "victims": [victim.key for victim in candidate.victims],
            "pdbViolations": candidate.pdb_violations,
        }
        for candidate in run.candidates
    }
    if run.rejected:
        answer["rejected"] = _by_plugin(run.rejected)
    if run.candidates:
        answer["nominated"] = sorted(
            candidate.node for candidate in plugin.lowest_cost(run.candidates)
        )
    return {"preemption": answer}


def _reached(
    profile: Profile, pod: PodInfo, screening: FeasibleNodes, refused: RejectedNodeStatuses
) -> DefaultPreemption | None:
    """DefaultPreemption, unless it is disabled or an earlier plugin ends PostFilter."""
    for plugin in profile.post_filter:
        if isinstance(plugin, DefaultPreemption):
            return plugin
        result = plugin.post_filter(screening.state, pod, refused)
        if result.status.code is not Code.UNSCHEDULABLE:
            return None
    return None
