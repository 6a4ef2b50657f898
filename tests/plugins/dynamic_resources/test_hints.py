"""DynamicResources: every change of the status of a pod's claim may let the pod be scheduled."""

from __future__ import annotations

from typing import Any

import pytest

from asched.framework.events import QueueingHint
from asched.plugins.dynamic_resources.pod_claims import ClaimHints
from tests.plugins.dynamic_resources.objects import DRIVER, a_claim, an_allocation
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
