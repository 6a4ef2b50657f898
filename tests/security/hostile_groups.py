"""Pod groups of a hostile tenant, each with members of forms of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from asched.model.resources import GroupResource, Resource, WatchedResource
from tests.security.hostile_objects import Json, a_pod, metadata

GROUP_CYCLES: Final = "group-cycles"
"""The scheduler name of a profile with ``groupCycle``."""
PREEMPTING_GROUPS: Final = "preempting-groups"
"""The scheduler name of a profile with ``groupCycle`` and ``groupPreemption``."""
GANGS: Final = "gangs"
"""The scheduler name of a profile that schedules gangs pod by pod."""
RACK: Final = "example.com/rack"
_PLUGINS: Final = (
    "GangScheduling",
    "TopologyPlacementGenerator",
    "PodGroupPodsCount",
    "PlacementBestFit",
)


def profiles() -> list[Json]:
    """The profiles of the groups, for a KubeSchedulerConfiguration."""
    cycle = {"groupCycle": True}
    arguments: dict[str, Json] = {
        GROUP_CYCLES: cycle,
        PREEMPTING_GROUPS: {**cycle, "groupPreemption": True},
        GANGS: {},
    }
    return [
        {
            "schedulerName": name,
            "plugins": {"multiPoint": {"enabled": [{"name": plugin} for plugin in _PLUGINS]}},
            "pluginConfig": [{"name": "GangScheduling", "args": args}],
        }
        for name, args in arguments.items()
    ]


class HostileGroup(NamedTuple):
    """One way to make a group expensive."""

    name: str
    scheduler: str
    members: int
    cpu_m: int
    """Of each member. It requests a few bytes of memory more than the one before it."""
    topology: str = ""
    """All members run in one domain of this label."""
    priority: int = 0
    terms: int = 0
    """Anti-affinity terms of each member, with a selector of its own."""

    def raw(self, number: int) -> Iterator[tuple[WatchedResource, bytes]]:
        """The PodGroup and its pods as JSON; the number occurs in all names."""
        name = f"group-{number}"
        spec: Json = {
            "schedulingPolicy": {"gang": {"minCount": self.members}},
            "priority": self.priority,
        }
        if self.topology:
            spec["schedulingConstraints"] = {"topology": [{"key": self.topology}]}
        group = {"metadata": metadata("group", number), "spec": spec}
        yield GroupResource.POD_GROUPS, _bytes(group)
        for index in range(self.members):
            yield Resource.PODS, _bytes(self._member(number, index, name))

    def _member(self, number: int, index: int, group: str) -> Json:
        # Each member of each group has another request.
        memory = f"{(10 + index) * 10_000_000 + number}"
        requests = {"cpu": f"{self.cpu_m}m", "memory": memory}
        more: dict[str, Any] = {}
        if self.terms:
            terms = [
                {
                    "labelSelector": {"matchLabels": {"app": f"g{number}-{index}-{i}"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
                for i in range(self.terms)
            ]
            rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            more["affinity"] = {"podAntiAffinity": rule}
        return a_pod(
            f"member-{index}",
            number,
            schedulerName=self.scheduler,
            schedulingGroup={"podGroupName": group},
            priority=self.priority,
            containers=[{"name": "c", "image": "i", "resources": {"requests": requests}}],
            **more,
        )


def _bytes(made: Json) -> bytes:
    return json.dumps(made).encode()


_ZONE = "topology.kubernetes.io/zone"
_HOST = "kubernetes.io/hostname"

GROUP_CLASSES = (
    HostileGroup("groups: different members", GROUP_CYCLES, 200, 100),
    HostileGroup("groups: terms", GROUP_CYCLES, 50, 100, terms=4),
    HostileGroup("groups: in no rack", GROUP_CYCLES, 200, 40_000, RACK),
    HostileGroup("groups: on no node", GROUP_CYCLES, 200, 400, _HOST),
    HostileGroup("groups: preemption", PREEMPTING_GROUPS, 200, 63_800, _ZONE, priority=10),
    HostileGroup("groups: vain preemption", PREEMPTING_GROUPS, 200, 63_800, RACK, priority=10),
    HostileGroup("groups: members preempt", GROUP_CYCLES, 200, 63_800, priority=10),
    HostileGroup("gangs: many forms", GANGS, 100, 63_800, priority=10),
    HostileGroup("gangs: 16 forms", GANGS, 16, 64_000, priority=10),
)
"""Groups within all limits. A rack of the benchmark has a hundred nodes."""
