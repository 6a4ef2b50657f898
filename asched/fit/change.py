"""The smallest verified change after which a manifest runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from asched.audit.explanation import Explanation
from asched.audit.pod_group.forms import PodGroupExplanation
from asched.audit.pod_group.node_changes import node_copy, smallest
from asched.audit.unblock import ChangeKind, UnblockingChange
from asched.fit.forms import FitChange
from asched.fit.pods import AdmittedManifest
from asched.fit.trial import FitTrial
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import HOSTNAME_LABEL, Node
from asched.plugins.shared import repels
from asched.state.checkpoint import restore
from asched.state.cluster import ClusterState

MAX_ADDED: Final = 64
"""Nodes that are added at most."""
_MODELS: Final = 4

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
    explanation: Explanation,
    groups: Sequence[PodGroupExplanation],
    more_nodes: Callable[[], FitChange | None],
) -> FitChange | None:
    """The smallest of the changes that were verified: of an object, of a group, or more nodes.

    ``more_nodes`` is only called if no change of an object suffices.
    """
    if len(groups) == 1 and groups[0].changes:
        first = groups[0].changes[0]
        return FitChange(first.summary, first.nodes[0] if first.nodes else "", "group")
    for kinds in (_BEFORE_NODES, _AFTER_NODES):
        best = min(_of_kinds(explanation, kinds), key=lambda one: one[0], default=None)
        if best is not None:
            return best[1]
        added = more_nodes() if kinds is _BEFORE_NODES else None
        if added is not None:
            return added
    return None


def _of_kinds(
    explanation: Explanation, kinds: Sequence[ChangeKind]
) -> Iterator[tuple[tuple[int, int, int], FitChange]]:
    """The changes of these kinds, with their size."""
    for number, node in enumerate(explanation.unblocking or ()):
        for change in node.changes:
            if change.kind in kinds:
                size = len(change.pods) or change.devices or 1
                text = _summary(change, node.node)
                yield (size, kinds.index(change.kind), number), FitChange(text, node.node)


def _summary(change: UnblockingChange, node: str) -> str:
    return f"{change.summary} ({node})" if node else change.summary


def more_nodes(
    checkpoint: bytes, load: PluginLoader, manifest: AdmittedManifest, missing: Sequence[PodInfo]
) -> FitChange | None:
    """The fewest nodes like one of the cluster with which all pods run, by the decisions of the
    scheduler core.

    ``checkpoint`` is the state with the objects of the manifest and without its pods. The
    ``missing`` pods have no node.
    """
    most = min(len(missing), MAX_ADDED)
    best: FitChange | None = None
    for model in _models(checkpoint, load, missing[0]):

        def works(count: int, model: Node = model) -> bool:
            trial = FitTrial(restore(checkpoint, load), manifest.claim_templates)
            for number in range(count):
                name = f"{model.name}-copy-{number}"
                for item in node_copy(trial.state, model, name, {}):
                    trial.observe(item)
            for pod in manifest.pods:
                trial.add(pod)
            trial.run()
            return all(result.node for result in trial.results())

        count = smallest(most, works)
        if count:
            most = count - 1
            nodes = "node" if count == 1 else "nodes"
            summary = f"add {count} {nodes} like {model.name}"
            best = FitChange(summary, model.name, "all", count)
    return best


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
