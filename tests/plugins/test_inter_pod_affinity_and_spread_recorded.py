"""InterPodAffinity and PodTopologySpread answer as recorded from kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import Plugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.framework.status import Status
from asched.model.resources import Resource
from asched.plugins.inter_pod_affinity.plugin import InterPodAffinity
from asched.plugins.pod_topology_spread.plugin import PodTopologySpread
from asched.state.cluster import ClusterState, ProfileHandle
from tests.conformance.documents import Case, Document
from tests.plugins.recorded_documents import TOPICS, assert_as_recorded
from tests.plugins.single_plugin import rejections, rows_of, scores

pytestmark = pytest.mark.shared

PLUGINS: tuple[type[InterPodAffinity] | type[PodTopologySpread], ...] = (
    InterPodAffinity,
    PodTopologySpread,
)
READ = (
    Resource.NODES,
    Resource.NAMESPACES,
    Resource.SERVICES,
    Resource.REPLICATION_CONTROLLERS,
    Resource.REPLICA_SETS,
    Resource.STATEFUL_SETS,
)


P = TypeVar("P", bound=Plugin)


def cluster_of(document: Document) -> ClusterState:
    """The objects of the document that the two plugins read."""
    cluster = ClusterState()
    for resource in READ:
        for found in document.objects(resource):
            cluster.object_store.put(found)
    for node in document.nodes:
        cluster.nodes.set_node(node)
    for pod in document.pods:
        if pod.node_name and not pod.terminal:
            cluster.nodes.add_pod(pod.node_name, PodInfo(pod))
    return cluster


def recorded(status: list[Any]) -> tuple[str, tuple[str, ...]]:
    return status[0], tuple(status[1])


def plain(status: Status) -> tuple[str, tuple[str, ...]]:
    return status.code.title, status.reasons


def _instance(plugin: type[P], arguments: dict[str, Any], handle: ProfileHandle) -> P:
    return plugin(parse_arguments(plugin, arguments), handle)


class Comparison:
    """Compares the two plugins with the cases of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._cluster = cluster_of(document)
        handle = ProfileHandle(self._cluster, "default-scheduler")
        self._plugins = [
            _instance(plugin, document.plugin_arguments(plugin.name), handle) for plugin in PLUGINS
        ]

    def differences(self, case: Case) -> Iterator[str]:
        pod, expect = PodInfo(case.pod), case.expect
        # The recording counted a pod with a node name as assigned.
        self._cluster.nodes.add_pod(case.pod.node_name, pod)
        for plugin in self._plugins:
            if "filter" in expect and plugin.name not in self._document.disabled("filter"):
                yield from self._filter(plugin, pod, expect)
            if "score" in expect and plugin.name not in self._document.disabled("score"):
                yield from self._score(plugin, pod, expect)
        self._cluster.nodes.remove_pod(case.pod.node_name, pod)

    def _filter(
        self, plugin: InterPodAffinity | PodTopologySpread, pod: PodInfo, expect: dict[str, Any]
    ) -> Iterator[str]:
        table = self._cluster.nodes
        result = plugin.pre_filter(CycleState(), pod, table)
        if result.status.is_skip != (plugin.name in expect["preFilter"]["skipped"]):
            yield f"{plugin.name}: PreFilter answered {result.status}"
        if plugin.name in expect["preFilter"].get("plugins", {}):
            yield f"{plugin.name}: expected a rejection at PreFilter, got {result.status}"
        listed = expect["filter"].get("plugins", {}).get(plugin.name, {})
        wanted = {name: recorded(status) for name, status in listed.items()}
        for nodes in (table, rows_of(table, [name for name in table.names if name][::-1])):
            got = {name: plain(s) for name, s in rejections(plugin, pod, nodes).items()}
            for name in sorted(wanted.keys() | got.keys()):
                if wanted.get(name) != got.get(name):
                    yield f"{plugin.name} on {name}: {wanted.get(name)}, got {got.get(name)}"

    def _score(
        self, plugin: InterPodAffinity | PodTopologySpread, pod: PodInfo, expect: dict[str, Any]
    ) -> Iterator[str]:
        answered = scores(plugin, pod, rows_of(self._cluster.nodes, expect["feasible"]))
        got = None if answered is None else (answered.raw, answered.normalized)
        of_plugin = expect["score"].get(plugin.name)
        wanted = None if of_plugin is None else (of_plugin["raw"], of_plugin["normalized"])
        if got != wanted or (got is None) != (plugin.name in expect["preScore"]["skipped"]):
            yield f"{plugin.name}: expected scores {wanted}, got {got}"


@pytest.mark.parametrize("topic", TOPICS)
def test_answers_match_recorded_cases(shared_dir: Path, topic: str) -> None:
    assert_as_recorded(shared_dir, topic, Comparison)
