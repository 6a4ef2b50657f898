"""Single plugins answer as recorded from kube-scheduler 1.36."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, Plugin, PreScorePlugin, ScoreAllPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.plugins.image_locality import ImageLocality
from asched.plugins.node_affinity import NodeAffinityPlugin
from asched.plugins.node_filters import NodeName, NodePorts, NodeUnschedulable
from asched.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.plugins.queue_and_bind import SchedulingGates
from asched.plugins.taint_toleration import TaintToleration
from tests.conformance.documents import Case, Document
from tests.plugins.recorded_documents import TOPICS, assert_as_recorded
from tests.plugins.single_plugin import build, pre_filter, rejections, rows_of, scores, table_of

FILTERS: tuple[type[FilterAllPlugin], ...] = (
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinityPlugin,
    NodePorts,
    NodeResourcesFit,
)
SCORES: tuple[type[ScoreAllPlugin], ...] = (
    TaintToleration,
    NodeAffinityPlugin,
    NodeResourcesFit,
    NodeResourcesBalancedAllocation,
    ImageLocality,
)

pytestmark = pytest.mark.shared


def _plain(status: Status) -> tuple[str, list[str]]:
    """Code and reasons; the order of extended resources' reasons is not fixed."""
    return status.code.title, sorted(status.reasons)


def _recorded(status: list[Any]) -> tuple[str, list[str]]:
    return status[0], sorted(status[1])


class Comparison:
    """Compares plugins with the cases of one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._table = table_of(document.nodes, document.pods)
        self._built: dict[type[Plugin], Plugin] = {}

    def differences(self, case: Case) -> Iterator[str]:
        pod, expect = PodInfo(case.pod), case.expect
        # The recording counted a pod with a node name as assigned.
        self._table.add_pod(case.pod.node_name, pod)
        yield from self._all_points(pod, expect)
        self._table.remove_pod(case.pod.node_name, pod)

    def _all_points(self, pod: PodInfo, expect: dict[str, Any]) -> Iterator[str]:
        gated = expect.get("preEnqueue", {}).get("SchedulingGates")
        answer = build(SchedulingGates).pre_enqueue(pod)
        if gated is not None or expect["outcome"] != "ignored":
            wanted = ("Success", []) if gated is None else _recorded(gated)
            if _plain(answer) != wanted:
                yield f"SchedulingGates: expected {wanted}, got {answer}"
        if "preFilter" in expect:
            yield from self._pre_filter(pod, expect["preFilter"])
        if "filter" in expect:
            yield from self._filter(pod, expect["filter"].get("plugins", {}))
        if "score" in expect:
            yield from self._score(pod, expect)

    def _plugin(self, plugin: type[Plugin]) -> Any:
        if plugin not in self._built:
            arguments = self._document.plugin_arguments(plugin.name)
            self._built[plugin] = build(plugin, arguments)
        return self._built[plugin]

    def _pre_filter(self, pod: PodInfo, expect: dict[str, Any]) -> Iterator[str]:
        # A rejection by NodeAffinity, the first plugin, ends the phase.
        ended = expect["status"][2] == NodeAffinityPlugin.name if "status" in expect else False
        names = None
        for plugin in (NodeAffinityPlugin,) if ended else FILTERS:
            result = pre_filter(self._plugin(plugin), CycleState(), pod, self._table)
            if result.status.is_skip != (plugin.name in expect.get("skipped", ())):
                yield f"{plugin.name}: PreFilter answered {result.status}"
            recorded = expect.get("plugins", {}).get(plugin.name)
            wanted = None if recorded is None else _recorded(recorded)
            got = _plain(result.status) if result.status.is_rejection else None
            if wanted != got:
                yield f"{plugin.name}: expected PreFilter {wanted}, got {got}"
            if result.node_names is not None:
                names = sorted(result.node_names)
        if names != expect.get("nodeNames"):
            yield f"PreFilter: expected nodes {expect['nodeNames']}, got {names}"

    def _filter(self, pod: PodInfo, expect: dict[str, Any]) -> Iterator[str]:
        for plugin in FILTERS:
            if plugin.name in self._document.disabled("filter"):
                continue
            wanted = {n: _recorded(status) for n, status in expect.get(plugin.name, {}).items()}
            answered = rejections(self._plugin(plugin), pod, self._table)
            got = {name: _plain(status) for name, status in answered.items()}
            for name in sorted(wanted.keys() | got.keys()):
                if wanted.get(name) != got.get(name):
                    yield f"{plugin.name} on {name}: {wanted.get(name)}, got {got.get(name)}"

    def _score(self, pod: PodInfo, expect: dict[str, Any]) -> Iterator[str]:
        nodes = rows_of(self._table, expect["feasible"])
        for plugin in SCORES:
            recorded = expect["score"].get(plugin.name)
            skipped = plugin.name in expect.get("preScore", {}).get("skipped", ())
            if recorded is None and not (skipped and issubclass(plugin, PreScorePlugin)):
                continue
            answered = scores(self._plugin(plugin), pod, nodes)
            got = None if answered is None else (answered.raw, answered.normalized)
            wanted = None if skipped else (recorded["raw"], recorded["normalized"])
            if got != wanted:
                yield f"{plugin.name}: expected scores {wanted}, got {got}"


@pytest.mark.parametrize("topic", TOPICS)
def test_answers_match_recorded_cases(shared_dir: Path, topic: str) -> None:
    assert_as_recorded(shared_dir, topic, Comparison)
