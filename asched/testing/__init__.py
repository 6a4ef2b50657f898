"""Test kit for plugins: object builders, single plugins and whole profiles on a virtual cluster.

>>> from asched.testing import node, pod, schedule, profile
>>> schedule(profile(), [node("n", cpu="2")], [pod("p", cpu="1")]).nodes
{'p': 'n'}

``docs/plugins/testing.md`` is the guide.
"""

from __future__ import annotations

from asched.testing.builders import (
    claim,
    from_api,
    from_yaml,
    node,
    nodes,
    pod,
    pod_group,
    pods,
    storage_class,
    volume,
)
from asched.testing.harness import (
    FakeBindingClient,
    RecordedRequest,
    instance,
    run_filter,
    scores,
)
from asched.testing.placements import PlacementResult, Placements, schedule
from asched.testing.profiles import ProfileSetup, profile, profile_setup

__all__ = [
    "FakeBindingClient",
    "RecordedRequest",
    "PlacementResult",
    "Placements",
    "ProfileSetup",
    "claim",
    "from_api",
    "from_yaml",
    "instance",
    "node",
    "nodes",
    "pod",
    "pod_group",
    "pods",
    "profile",
    "profile_setup",
    "run_filter",
    "schedule",
    "scores",
    "storage_class",
    "volume",
]
