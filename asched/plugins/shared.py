"""What several plugins share: results of hints, taints, node selectors, required node affinity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from asched.framework.events import QueueingHint, QueueingHintFn
from asched.framework.interface import PreFilterResult
from asched.framework.node_matching import labels_match, selector_matches
from asched.framework.nodes import BoolColumn, Nodes
from asched.framework.pod_info import PodShape
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.node import NO_EXECUTE, NO_SCHEDULE, Node, Taint
from asched.model.pod import Affinity, Pod, PodSpec, Toleration
from asched.model.selectors import NodeSelector, matchable

PROCEED = PreFilterResult(SUCCESS)
SKIP = PreFilterResult(Status.skip())

ObjectT = TypeVar("ObjectT", bound=Object)


def queue_if(helps: bool) -> QueueingHint:
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def own_pod_updated(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    return queue_if(new is not None and new.uid == pod.uid)


def added_or_changed(kind: type[ObjectT], part: Callable[[ObjectT], object]) -> QueueingHintFn:
    """Queue if an object of the kind is added, or this part of it changes."""

    def hint(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        if not isinstance(new, kind):
            return QueueingHint.SKIP
        return queue_if(not isinstance(old, kind) or part(old) != part(new))

    return hint


def is_tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)


def repels(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether a taint keeps the pod off the node; ``PreferNoSchedule`` is ignored."""
    return any(
        taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not is_tolerated(taint, tolerations)
        for taint in taints
    )


class Requirement(NamedTuple):
    """A pod's node selector and required node affinity."""

    labels: dict[str, str]
    selector: NodeSelector | None

    def matches(self, node: Node) -> bool:
        labels = node.metadata.labels
        return all(labels.get(key) == text for key, text in self.labels.items()) and (
            self.selector is None or self.selector.matches(labels, node.name)
        )

    def rows(self, nodes: Nodes) -> BoolColumn:
        matched = labels_match(self.labels, nodes)
        if self.selector is not None:
            matched = matched & selector_matches(self.selector, nodes)
        return matched


def required_terms(affinity: Affinity | None) -> NodeSelector | None:
    if affinity is None or affinity.node_affinity is None:
        return None
    return affinity.node_affinity.required


def required_nodes(pod: PodShape | PodSpec) -> Requirement:
    required = required_terms(pod.affinity)
    return Requirement(pod.node_selector or {}, None if required is None else matchable(required))
