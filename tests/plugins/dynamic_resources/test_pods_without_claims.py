"""DynamicResources: pods without claims pass."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from asched.dra.allocator import SearchLimits
from asched.framework.cycle_state import CycleState
from asched.framework.nodes import RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import parse_arguments
from asched.framework.status import Code, Status
from asched.plugins.dynamic_resources import DynamicResources
from asched.plugins.dynamic_resources.plugin import search_limits
from asched.state.node_table import NodeTable
from tests.daemon.world import world
from tests.plugins.volume_clusters import a_node, a_pod, build, cluster_of


class NoStatuses:
    """No rejected nodes."""

    def status(self, node_name: str) -> Status | None:
        return None

    def names(self, *, unresolvable: bool) -> list[str]:
        return []

    def rows(self, code: Code) -> RowArray:
        return np.empty(0, np.intp)


def test_pod_without_claims_passes() -> None:
    cluster = cluster_of(a_node("n"), a_node("m"))
    plugin, state, pod = build(DynamicResources, cluster), CycleState(), PodInfo(a_pod("p"))
    assert plugin.pre_filter(state, pod, cluster.nodes).status.is_skip
    assert plugin.filter_all(state, pod, cluster.nodes).codes.tolist() == [0, 0]
    assert plugin.score_all(state, pod, cluster.nodes).tolist() == [0, 0]
    words = plugin.post_filter(state, pod, NoStatuses()).status
    assert words == Status.unschedulable("no new claims to deallocate")


def test_post_filter_without_pre_filter_returns_not_found() -> None:
    plugin = build(DynamicResources, cluster_of())
    status = plugin.post_filter(CycleState(), PodInfo(a_pod("p")), NoStatuses()).status
    assert (status.code, status.message) == (Code.ERROR, "not found")


def test_pod_that_lists_no_kind_of_claim_is_rejected() -> None:
    pod = PodInfo(a_pod("p", resourceClaims=[{"name": "nic"}]))
    plugin = build(DynamicResources, cluster_of())
    reason = 'pod "d/p", spec.resourceClaim "nic": none of the supported fields are set'
    assert plugin.pre_enqueue(pod) == Status.unresolvable(reason)
    assert plugin.pre_filter(CycleState(), pod, NodeTable()).status == Status.unresolvable(reason)


async def test_pod_condition_has_the_words_of_post_filter(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, w.daemon():
        w.add_pod("big", "900")
        w.add_pod("lost", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}])
        await w.until(lambda: all(map(w.message, ("big", "lost"))))
        assert w.message("big").startswith(
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate"
        )
        assert w.message("lost") == (
            '0/2 nodes are available: persistentvolumeclaim "none" not found. not found'
        )


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("filterTimeout", "-1s", "filterTimeout: -1s is less than 0s"),
        ("bindingTimeout", "500ms", "bindingTimeout: 500ms is less than 1s"),
        ("bindingTimeout", "soon", 'bindingTimeout: "soon" is not a duration'),
    ],
)
def test_invalid_arguments_are_refused(field: str, value: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_arguments(DynamicResources, {field: value})


def test_filter_timeout_limits_the_steps_of_a_search() -> None:
    usual = SearchLimits()
    assert search_limits(timedelta(seconds=10)) == search_limits(timedelta()) == usual
    assert search_limits(timedelta(milliseconds=100)).steps_per_node == 50_000
