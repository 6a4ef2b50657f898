"""The smallest verified change after which a manifest runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from asched.audit.explanation import Explanation
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.pod_group.node_changes import node_copy, smallest
from asched.audit.unblock import ChangeKind, UnblockingChange, changed_node, changed_pod
from asched.fit.forms import FitChange
from asched.fit.pods import AdmittedManifest
from asched.fit.trial import FitTrial
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import HOSTNAME_LABEL, Node
from asched.model.pod import Pod
from asched.plugins.shared import repels
from asched.state.checkpoint import restore
from asched.state.cluster import ClusterState

MAX_ADDED: Final = 64
"""Nodes that are added at most."""
_MODELS: Final = 4
_MAX_TRIED: Final = 8
"""Changes of objects that are tried with all pods."""

_BEFORE_NODES: Final = (
    ChangeKind.UNGATE,
    ChangeKind.TOLERATION,
    ChangeKind.POD_CONSTRAINT,
    ChangeKind.UNCORDON,
    ChangeKind.NODE_LABEL,
    ChangeKind.CLAIM_SPEC,
    ChangeKind.DEVICE_TAINT,
    ChangeKind.OTHER_ANTI_AFFINITY,
    ChangeKind.CLAIM,
)
"""Changes that cost less than a node, in order of preference among equally small ones."""
_AFTER_NODES: Final = (ChangeKind.EVICTIONS, ChangeKind.MORE_CAPACITY, ChangeKind.MORE_DEVICES)


def smallest_change(
    explanation: Explanation, groups: Sequence[PodGroupExplanation], trials: ChangeTrials | None
) -> FitChange | None:
    """The smallest of the changes that were verified: of a group, of an object, or more nodes.

    A change of an object, or more nodes, with which all pods run precede one that helps the next
    pod only. Without ``trials`` changes are not tried with all pods.
    """
    if len(groups) == 1 and groups[0].changes:
        first = groups[0].changes[0]
        return FitChange(first.summary, first.nodes[0] if first.nodes else "", "group")
    small = _of_kinds(explanation, _BEFORE_NODES)
    if trials is not None:
        for change, node in small[:_MAX_TRIED]:
            if trials.all_run_with(change, node):
                return FitChange(_summary(change, node), node, "all")
        # A change that lets the only missing pod pass all filters costs less than a node.
        added = None if small and trials.one_is_missing else trials.more_nodes()
        if added is not None:
            return added
    large = _of_kinds(explanation, _AFTER_NODES)
    return next((FitChange(_summary(*one), one[1]) for one in (*small, *large)), None)


def _of_kinds(
    explanation: Explanation, kinds: Sequence[ChangeKind]
) -> list[tuple[UnblockingChange, str]]:
    """The changes of these kinds with their nodes, the smallest first."""
    found = [
        (change, each.node)
        for each in explanation.unblocking or ()
        for change in each.changes
        if change.kind in kinds
    ]

    def size(one: tuple[UnblockingChange, str]) -> tuple[int, int]:
        change, _ = one
        return len(change.pods) or change.devices or 1, kinds.index(change.kind)

    return sorted(found, key=size)


def _summary(change: UnblockingChange, node: str) -> str:
    return f"{change.summary} ({node})" if node else change.summary


class ChangeTrials:
    """Decides a manifest again, each time on a cluster with a change."""

    def __init__(
        self,
        checkpoint: bytes,
        load: PluginLoader,
        manifest: AdmittedManifest,
        missing: Sequence[PodInfo],
    ) -> None:
        """``checkpoint`` is the state with the objects of the manifest and without its pods. The
        ``missing`` pods have no node."""
        self._checkpoint = checkpoint
        self._load = load
        self._manifest = manifest
        self._missing = missing

    @property
    def one_is_missing(self) -> bool:
        """Whether all pods but one have a node."""
        return len(self._missing) == 1

    def all_run_with(self, change: UnblockingChange, node: str) -> bool:
        """Whether all pods run after a change of the node, or of the pods of one workload.

        False for changes of other objects, which are not tried.
        """
        trial = self._trial()
        found = trial.state.objects(Node).get(node)
        changes_node = found is not None and trial.observe(changed_node(change, found))
        first = self._missing[0].key
        same = next(w for w in self._manifest.workloads if any(p.key == first for p in w.pods))
        changed = {pod.key: changed_pod(change, pod) for pod in same.pods}
        if not changes_node and changed[first] == self._missing[0].pod:
            return False
        return _all_run(trial, [changed.get(pod.key, pod) for pod in self._manifest.pods])

    def more_nodes(self) -> FitChange | None:
        """The fewest nodes like one of the cluster with which all pods run."""
        most = min(len(self._missing), MAX_ADDED)
        best: FitChange | None = None
        for model in _models(self._checkpoint, self._load, self._missing[0]):
            count = smallest(most, partial(self._all_run_on_copies, model))
            if count:
                most = count - 1
                nodes = "node" if count == 1 else "nodes"
                summary = f"add {count} {nodes} like {model.name}"
                best = FitChange(summary, model.name, "all", count)
        return best

    def _all_run_on_copies(self, model: Node, count: int) -> bool:
        trial = self._trial()
        for number in range(count):
            for item in node_copy(trial.state, model, f"{model.name}-copy-{number}", {}):
                trial.observe(item)
        return _all_run(trial, self._manifest.pods)

    def _trial(self) -> FitTrial:
        return FitTrial(restore(self._checkpoint, self._load), self._manifest.claim_templates)


def _all_run(trial: FitTrial, pods: Sequence[Pod]) -> bool:
    for pod in pods:
        trial.add(pod)
    trial.run()
    return all(result.node for result in trial.results())


def _models(checkpoint: bytes, load: PluginLoader, pod: PodInfo) -> list[Node]:
    """One node of each of the most frequent forms, first those that hold the pod when empty."""
    forms: dict[object, list[Node]] = {}
    state = restore(checkpoint, load).state
    for node in state.objects(Node).values():
        if node.spec.unschedulable:
            continue
        labels = {k: v for k, v in node.metadata.labels.items() if k != HOSTNAME_LABEL}
        form = (
            tuple(sorted(labels.items())),
            tuple(sorted((k, str(v)) for k, v in node.status.allocatable.items())),
            node.spec.taints,
        )
        forms.setdefault(form, []).append(node)
    ordered = sorted(
        forms.values(),
        key=lambda nodes: (not _holds(state, nodes[0], pod), -len(nodes), nodes[0].name),
    )
    return [nodes[0] for nodes in ordered[:_MODELS]]


def _holds(state: ClusterState, node: Node, pod: PodInfo) -> bool:
    """Whether the empty node has enough of each resource, and no taint that keeps the pod off."""
    row = state.nodes.row_of(node.name)
    requests = pod.shape.requests.items()
    enough = all(int(state.nodes.allocatable(name)[row]) >= amount for name, amount in requests)
    return enough and not repels(node.spec.taints, pod.pod.spec.tolerations)
