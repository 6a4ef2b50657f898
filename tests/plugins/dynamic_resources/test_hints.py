"""DynamicResources: every change of the status of a pod's claim may let the pod be scheduled."""

from __future__ import annotations

from typing import Any

import pytest

from asched.framework.caching import ChangeLog
from asched.framework.events import QueueingHint
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.query_index import RejectedPods
from asched.plugins.dynamic_resources.pod_claims import ClaimHints
from tests.plugins.dynamic_resources.objects import DRIVER, a_claim, an_allocation
from tests.plugins.dynamic_resources.objects import a_pod as a_claiming_pod
from tests.plugins.volume_clusters import a_pod, cluster_of

READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def reported(**fields: Any) -> dict[str, Any]:
    """A claim's status with what a driver reports."""
    return {"devices": [{"driver": DRIVER, "pool": "n", "device": "gpu-0", **fields}]}


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": [{**READY, "status": "False"}]},
        {"conditions": [{**READY, "reason": "Tested"}]},
        {"conditions": [{**READY, "message": "all tests passed"}]},
        {"conditions": [{**READY, "lastTransitionTime": "2026-01-02T00:00:00Z"}]},
        {"conditions": [{**READY, "observedGeneration": 2}]},
        {"conditions": [READY], "data": {"slot": 3}},
        {"conditions": [READY], "networkData": {"interfaceName": "eth1"}},
    ],
)
def test_reports_of_drivers_count(change: dict[str, Any]) -> None:
    allocation = an_allocation("n", "gpu-0")
    before = a_claim("c", allocation=allocation, status=reported(conditions=[READY]))
    after = a_claim("c", allocation=allocation, status=reported(**change))
    pod = a_pod("p", resourceClaims=[{"name": "r", "resourceClaimName": "c"}])
    hints = ClaimHints(cluster_of(after))
    assert hints.claim_changed(pod, before, after) is QueueingHint.QUEUE
    assert hints.claim_changed(pod, after, after) is QueueingHint.SKIP


def test_change_of_a_claim_concerns_the_pods_that_name_it() -> None:
    """Pods come and go, and more of them than the log of changes has room for."""
    waiting: dict[str, QueuedPod] = {}
    hints, queue = ClaimHints(cluster_of()), RejectedPods(waiting, ChangeLog(4))
    claims = [a_claim("a"), a_claim("b")]

    def change(name: str, *used: str) -> None:
        pod = a_claiming_pod(name, *used)
        waiting.pop(pod.key, None)
        if used:
            waiting[pod.key] = QueuedPod(PodInfo(pod), 0)
        queue.changes.append(pod.key)

    def concerned() -> list[set[str]]:
        found = [hints.pods_concerned(queue, None, claim) for claim in claims]
        return [{key.removeprefix("d/") for key in keys} for keys in found]

    change("p", "a")
    change("q", "a", "b", "b")
    change("r", "c")
    assert concerned() == [{"p", "q"}, {"q"}]
    change("p")
    change("q", "b")
    assert concerned() == [set(), {"q"}]
    for number in range(9):
        change(f"s{number}", "a")
    assert concerned() == [{f"s{number}" for number in range(9)}, {"q"}]
    used = a_claim("z", allocation=an_allocation("n", "gpu-0"))
    assert len(hints.pods_concerned(queue, used, a_claim("z"))) == len(waiting) == 11
