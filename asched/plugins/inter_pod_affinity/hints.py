"""Which changes of pods and nodes can help a pod that InterPodAffinity rejected."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from asched.framework.cluster import Cluster
from asched.framework.events import ActionType, ClusterEventWithHint, EventResource, QueueingHint
from asched.framework.pod_info import PodInfo, label_set_of, shape_of
from asched.framework.pod_queries import PodQuery, TermKind, terms_of
from asched.framework.query_index import AwaitedIndex, AwaitedQueries, RejectedPods
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.plugins.inter_pod_affinity.queries import TermQueries
from asched.plugins.inter_pod_affinity.states import AffinityStates
from asched.plugins.shared import own_pod_updated, queue_if

_MAX_HINT_TERMS = 8


class AffinityHints:
    """The queueing hints of the plugin."""

    def __init__(self, cluster: Cluster, queries: TermQueries, states: AffinityStates) -> None:
        self._cluster = cluster
        self._queries = queries
        self._states = states
        self._awaited_index = AwaitedIndex(self._awaited)

    def events(self) -> Sequence[ClusterEventWithHint]:
        """The events to register."""
        pod_changes = ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.DELETE
        node_changes = ActionType.ADD | ActionType.UPDATE_NODE_LABEL
        return (
            # kube-scheduler registers all pods, and its hint skips other pods without a node.
            ClusterEventWithHint.on(
                EventResource.ASSIGNED_POD, pod_changes, self._pod_changed, self._select
            ),
            # Terms of existing pods may select the old labels only.
            ClusterEventWithHint.on(
                EventResource.TARGET_POD, ActionType.UPDATE_POD_LABEL, own_pod_updated
            ),
            ClusterEventWithHint.on(EventResource.NODE, node_changes, self._node_changed),
        )

    def _awaited(self, pod: PodInfo) -> AwaitedQueries:
        """For which changes of pods :meth:`_pod_changed` queues the pod, besides deletions of pods
        with anti-affinity terms."""
        terms = self._queries.of(pod.shape, pod.namespace)
        if len(terms.anti_affinity) > _MAX_HINT_TERMS:
            return AwaitedQueries(any_pod=True)
        return AwaitedQueries(
            [term.query for term in terms.affinity[:1]],
            [term.query for term in terms.anti_affinity],
        )

    def _select(
        self, rejected: RejectedPods, old: Object | None, new: Object | None
    ) -> Collection[str]:
        """The rejected pods for which :meth:`_pod_changed` can return QUEUE."""
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        if (before is not None and not before.node_name) or (
            after is not None and not after.node_name
        ):
            return ()
        found = self._awaited_index.select(
            rejected,
            self._queries.check_namespaces(),
            None if before is None else label_set_of(before),
            None if after is None else label_set_of(after),
        )
        if before is None or after is not None or not _has_anti_affinity(before):
            return found
        return [
            key
            for key, queued in rejected.waiting.items()
            if key in found or self._anti_affinity_selects(queued.info, before)
        ]

    def _pod_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if an assigned pod starts to match the required affinity, stops to match an
        anti-affinity term, or is deleted and had an anti-affinity term that selects the pod.
        kube-scheduler requires *all* anti-affinity terms to match, and ignores the terms of a
        deleted pod, so pods wait for the next flush. Many terms are not evaluated: the hint is
        called for each pending pod at each change of a pod, and an attempt costs less."""
        before = old if isinstance(old, Pod) else None
        after = new if isinstance(new, Pod) else None
        if any(other is not None and not other.node_name for other in (before, after)):
            return QueueingHint.SKIP
        terms = self._queries.of(shape_of(pod), pod.namespace)
        if len(terms.anti_affinity) > _MAX_HINT_TERMS:
            return QueueingHint.QUEUE
        for term in terms.affinity[:1]:
            if _matches(term.query, after) and not _matches(term.query, before):
                return QueueingHint.QUEUE
        for term in terms.anti_affinity:
            if _matches(term.query, before) and not _matches(term.query, after):
                return QueueingHint.QUEUE
        return queue_if(
            before is not None
            and after is None
            and _has_anti_affinity(before)
            and self._anti_affinity_selects(PodInfo(pod), before)
        )

    def _anti_affinity_selects(self, pod: PodInfo, other: Pod) -> bool:
        """Whether the other pod's required anti-affinity selects this one, or has many terms."""
        terms = terms_of(shape_of(other), other.namespace)[TermKind.REQUIRED_ANTI_AFFINITY]
        if len(terms) > _MAX_HINT_TERMS:
            return True
        namespace_labels = self._queries.namespace_labels(pod.namespace)
        return any(term.matches(pod.label_set, namespace_labels) for term, _ in terms)

    def _node_changed(self, pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        """Queue if a new node has the required topology keys, or a node changes its domain of a
        relevant topology key."""
        if not isinstance(new, Node):
            return QueueingHint.SKIP
        affinity, anti_affinity = _required_keys(pod)
        if not isinstance(old, Node):
            return queue_if(all(key in new.labels for key in affinity))
        before, after = old.labels, new.labels
        changed = {key for key, _ in before.items() ^ after.items()}
        if not changed.isdisjoint(affinity | anti_affinity):
            return QueueingHint.QUEUE
        table = self._cluster.affinity_terms(TermKind.REQUIRED_ANTI_AFFINITY)
        # Existing pods may have a hundred thousand keys.
        if not any(key in table.topology_keys for key in changed):
            return QueueingHint.SKIP
        terms = self._states.of(shape_of(pod), label_set_of(pod)).existing_terms
        existing, nodes = terms.get(TermKind.REQUIRED_ANTI_AFFINITY), self._cluster.nodes
        return queue_if(existing is not None and existing.use(table, nodes, changed))


def _has_anti_affinity(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    rules = None if affinity is None else affinity.pod_anti_affinity
    return rules is not None and bool(rules.required)


def _required_keys(pod: Pod) -> tuple[set[str], set[str]]:
    """The topology keys of the pod's required affinity and anti-affinity."""
    affinity = pod.spec.affinity
    if affinity is None:
        return set(), set()
    affinity_keys, anti_affinity_keys = (
        set[str]() if rules is None else {term.topology_key for term in rules.required}
        for rules in (affinity.pod_affinity, affinity.pod_anti_affinity)
    )
    return affinity_keys, anti_affinity_keys


def _matches(query: PodQuery, pod: Pod | None) -> bool:
    return pod is not None and query.matches(label_set_of(pod))
