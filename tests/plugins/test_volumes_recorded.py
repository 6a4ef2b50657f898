"""The volume plugins answer as recorded from kube-scheduler 1.36."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, PreFilterPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.resources import Resource
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.node_declared_features import NodeDeclaredFeatures
from asched.plugins.node_volume_limits import NodeVolumeLimits
from asched.plugins.volume_binding.plugin import VolumeBinding
from asched.plugins.volume_restrictions import VolumeRestrictions
from asched.plugins.volume_zone import VolumeZone
from asched.state.cluster import ClusterState
from tests.conformance.documents import Case, Document
from tests.plugins.recorded_documents import assert_as_recorded
from tests.plugins.volume_clusters import build, cluster_of, rejections

TOPICS = ("volumes", "declared-features", "edge", "mixed", "preemption", "resources")
IN_ORDER: tuple[type[FilterAllPlugin], ...] = (
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    DynamicResources,
    NodeDeclaredFeatures,
)
"""As PreFilter runs them."""

pytestmark = pytest.mark.shared


def _plain(status: Status) -> list[Any]:
    return [status.code.title, [*status.reasons]]


class Comparison:
    """Compares plugins with the cases of one document."""

    def __init__(self, document: Document) -> None:
        everything = (item for kind in Resource for item in document.objects(kind))
        self._cluster: ClusterState = cluster_of(*everything)
        self._disabled = document.disabled("filter") | document.disabled("preFilter")

    def differences(self, case: Case) -> Iterator[str]:
        if "preFilter" not in case.expect:
            return
        pod, nodes = PodInfo(case.pod), self._cluster.nodes
        # The recording counted a pod with a node name as assigned.
        nodes.add_pod(case.pod.node_name, pod)
        yield from self._pre_filter(pod, case.expect["preFilter"])
        if "filter" in case.expect:
            yield from self._filter(pod, case.expect["filter"].get("plugins", {}))
        skipped = case.expect.get("preScore", {}).get("skipped", ())
        plugin = build(VolumeBinding, self._cluster)
        if "preScore" in case.expect and (
            plugin.pre_score(CycleState(), pod, nodes).is_skip != ("VolumeBinding" in skipped)
        ):
            yield f"PreScore of VolumeBinding: skipped are {skipped}"
        nodes.remove_pod(case.pod.node_name, pod)

    def _pre_filter(self, pod: PodInfo, expect: dict[str, Any]) -> Iterator[str]:
        rejected_by = expect["status"][2] if "status" in expect else ""
        names = [plugin.name for plugin in IN_ORDER]
        if rejected_by and rejected_by not in names:
            return
        for plugin in IN_ORDER:
            instance: Any = build(plugin, self._cluster)
            assert isinstance(instance, PreFilterPlugin)
            status = instance.pre_filter(CycleState(), pod, self._cluster.nodes).status
            recorded = expect.get("plugins", {}).get(plugin.name)
            wanted = recorded or ["Skip" if plugin.name in expect["skipped"] else "Success", []]
            if plugin.name not in self._disabled and _plain(status) != wanted:
                yield f"PreFilter of {plugin.name}: expected {wanted}, got {_plain(status)}"
            if plugin.name == rejected_by:
                return

    def _filter(self, pod: PodInfo, expect: dict[str, Any]) -> Iterator[str]:
        for plugin in IN_ORDER:
            if plugin.name in self._disabled:
                continue
            answer = rejections(build(plugin, self._cluster), pod, self._cluster.nodes)
            got = {} if isinstance(answer, Status) else {n: _plain(s) for n, s in answer.items()}
            wanted = expect.get(plugin.name, {})
            for node in sorted(wanted.keys() | got.keys()):
                if wanted.get(node) != got.get(node):
                    yield f"{plugin.name} on {node}: {wanted.get(node)}, got {got.get(node)}"


@pytest.mark.parametrize("topic", TOPICS)
def test_answers_match_recorded_cases(shared_dir: Path, topic: str) -> None:
    assert_as_recorded(shared_dir, topic, Comparison)
