"""CompositePodGroups of a simulated cluster, and what their controller and users do with them."""

from __future__ import annotations

from random import Random
from typing import Any

from asched.apiserver.cluster import EmbeddedCluster
from tests.fault_simulation.apps import ZONE, App
from tests.fault_simulation.trace import Trace

Object = dict[str, Any]

COMPOSITES = "compositepodgroups.scheduling.k8s.io"
_NAMESPACE = "default"
_MOST_TREES = 2
_NESTED = 0.3
"""Share of the CompositePodGroups below another one."""


class GroupTrees:
    """Keeps the wanted CompositePodGroups in the cluster while the API server serves them."""

    def __init__(self, cluster: EmbeddedCluster, chance: Random, trace: Trace) -> None:
        self._cluster = cluster
        self._chance = chance
        self._trace = trace
        self._wanted: dict[str, Object] = {}
        self._made = 0

    @property
    def served(self) -> bool:
        try:
            self._cluster.resource(COMPOSITES)
        except KeyError:
            return False
        return True

    def tick(self) -> None:
        """Create what is missing."""
        if self.served:
            known = {each["metadata"]["name"] for each in self._cluster.list(COMPOSITES)}
            for name in [name for name in self._wanted if name not in known]:
                self._trace("churn", f"CompositePodGroup {name}: {self._wanted[name]['spec']}")
                self._cluster.create(COMPOSITES, self._wanted[name], namespace=_NAMESPACE)

    def add(self, app: App) -> None:
        """Put the group of the app below a CompositePodGroup, if the API server has such."""
        if not self.served:
            return
        if len(self._wanted) < _MOST_TREES or self._chance.random() < 0.2:
            self._create(priority_class=app.spec.get("priorityClassName", ""))
        app.parent = self._chance.choice([*self._wanted])

    def change(self) -> None:
        """Another minimum or topology, or the CompositePodGroup is deleted; it is created again at
        the next tick."""
        if not self.served or not self._wanted:
            return
        name = self._chance.choice([*self._wanted])
        wanted = self._wanted[name]
        drawn = self._chance.random()
        if drawn < 0.5:
            wanted["spec"]["schedulingPolicy"]["gang"]["minGroupCount"] = self._minimum()
            patch: Object = {"spec": {"schedulingPolicy": wanted["spec"]["schedulingPolicy"]}}
        elif drawn < 0.8:
            annotations = {"asched.dev/required-topology": self._chance.choice((ZONE, None))}
            patch = {"metadata": {"annotations": annotations}}
        else:
            self._trace("churn", f"CompositePodGroup {name} is deleted")
            if self._cluster.api.find(COMPOSITES, _NAMESPACE, name) is not None:
                self._cluster.delete(COMPOSITES, name, namespace=_NAMESPACE)
            return
        if self._cluster.api.find(COMPOSITES, _NAMESPACE, name) is not None:
            self._trace("churn", f"CompositePodGroup {name} gets {patch}")
            self._cluster.patch(COMPOSITES, name, patch, namespace=_NAMESPACE)

    def _minimum(self) -> int:
        return self._chance.choice((1, 1, 2, 2, 3))

    def _create(self, priority_class: str) -> None:
        self._made += 1
        name = f"tree{self._made}"
        spec: Object = {
            "schedulingPolicy": {"gang": {"minGroupCount": self._minimum()}},
            "workloadRef": {"workloadName": "simulated", "templateName": name},
        }
        if priority_class:
            spec["priorityClassName"] = priority_class
        if self._chance.random() < 0.3:
            spec["schedulingConstraints"] = {"topology": [{"key": ZONE}]}
        if self._wanted and self._chance.random() < _NESTED:
            spec["parentCompositePodGroupName"] = self._chance.choice([*self._wanted])
        self._wanted[name] = {"metadata": {"name": name}, "spec": spec}
        self.tick()
