"""Simulated drivers: every node has the same devices, published as ResourceSlices.

``8,model=A100,memory=80Gi`` are eight devices per node with an attribute and a capacity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.slice_checks import MAX_DEVICES
from asched.apiserver.dra.strategy import CLASSES, SLICES
from asched.apiserver.errors import Object
from asched.apiserver.names import LABEL, SUBDOMAIN
from asched.apiserver.reconciler import ObjectKey, Reconciler
from asched.model.quantity import QuantityError, value

DEFAULT_DRIVER: Final = "gpu.example.com"
MAX_DEVICES_OF_NODE: Final = 4096

_ATTRIBUTE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_EXPECTED = "write COUNT[,NAME=VALUE...] such as 8,model=A100,memory=80Gi"


@dataclass(frozen=True)
class DeviceSpec:
    """The devices of each node."""

    count: int
    driver: str = DEFAULT_DRIVER
    """The name of the driver, and of the DeviceClass of its devices."""
    attributes: dict[str, Object] = field(default_factory=dict)
    capacity: dict[str, Object] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    """Binding conditions, which the simulated kubelets set."""

    @classmethod
    def parse(cls, text: str) -> DeviceSpec:
        """From ``COUNT[,NAME=VALUE...]``.

        A value with a unit (``80Gi``) is a capacity, any other one an attribute: an integer, a
        boolean, a version (``1.2.3``) or a string. ``driver=NAME`` names the driver, ``wait=TYPE``
        a condition that a binding waits for. Raises ValueError with one line.
        """
        head, *parts = text.split(",")
        if not head.isdecimal() or not 1 <= int(head) <= MAX_DEVICES_OF_NODE:
            limit = f"the number of devices is 1 to {MAX_DEVICES_OF_NODE}"
            raise ValueError(f"devices {text!r}: {limit}; {_EXPECTED}")
        driver, attributes, capacity, conditions = DEFAULT_DRIVER, {}, {}, []
        for part in parts:
            name, separator, given = part.partition("=")
            if not separator or not given or not _ATTRIBUTE_NAME.fullmatch(name):
                raise ValueError(f"devices {text!r}: {part!r} is not NAME=VALUE; {_EXPECTED}")
            if name == "driver":
                if not SUBDOMAIN.fullmatch(given) or len(given) > 63:
                    raise ValueError(f"devices {text!r}: {given!r} is not the name of a driver")
                driver = given
            elif name == "wait":
                conditions.append(given)
            elif _has_unit(given):
                capacity[name] = {"value": given}
            else:
                attributes[name] = _attribute(given)
        return cls(int(head), driver, attributes, capacity, tuple(conditions))

    @property
    def kind(self) -> str:
        """The beginning of the devices' names."""
        first = self.driver.partition(".")[0]
        return first if LABEL.fullmatch(first) else "device"

    def device_class(self) -> Object:
        expression = f"device.driver == '{self.driver}'"
        selectors = [{"cel": {"expression": expression}}]
        return {"metadata": {"name": self.driver}, "spec": {"selectors": selectors}}

    def slices(self, node: Object) -> Iterator[Object]:
        """The slices of a node."""
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        starts = range(0, self.count, MAX_DEVICES)
        for number, start in enumerate(starts):
            end = min(start + MAX_DEVICES, self.count)
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
            pool = {"name": name, "generation": 1, "resourceSliceCount": len(starts)}
            yield {
                "metadata": {"name": f"{name}-{self.driver}-{number}", "ownerReferences": [owner]},
                "spec": {
                    "driver": self.driver,
                    "nodeName": name,
                    "pool": pool,
                    "devices": [self._device(index) for index in range(start, end)],
                },
            }

    def _device(self, index: int) -> Object:
        device: Object = {
            "name": f"{self.kind}-{index}",
            "attributes": {**self.attributes, "index": {"int": index}},
        }
        if self.capacity:
            device["capacity"] = self.capacity
        if self.conditions:
            device["bindingConditions"] = [*self.conditions]
            device["bindingFailureConditions"] = [f"{each}Failed" for each in self.conditions]
        return device


def _has_unit(text: str) -> bool:
    """Whether the text is a quantity with a unit."""
    if not text[0].isdigit() or text.isdecimal() or not text[-1].isalpha():
        return False
    try:
        value(text)
    except QuantityError:
        return False
    return True


def _attribute(text: str) -> dict[str, Any]:
    if text in ("true", "false"):
        return {"bool": text == "true"}
    if text.isdecimal():
        return {"int": int(text)}
    return {"version" if _VERSION.fullmatch(text) else "string": text}


class SimulatedDriver(Reconciler):
    """Publishes the devices of all nodes, and removes those of nodes that are gone."""

    resources = ("nodes",)

    def __init__(self, cluster: EmbeddedCluster, spec: DeviceSpec) -> None:
        super().__init__(cluster)
        self._spec = spec

    def attach(self) -> None:
        if self._api.find(CLASSES, "", self._spec.driver) is None:
            self._cluster.create("deviceclasses", self._spec.device_class())
        super().attach()

    def sync(self, item: ObjectKey) -> None:
        stored = self._api.find("nodes", "", item.name)
        if stored is not None:
            for made in self._spec.slices(stored.obj):
                if self._api.find(SLICES, "", made["metadata"]["name"]) is None:
                    self._cluster.create("resourceslices", made)
            return
        for published in self._cluster.stored("resourceslices"):
            spec = published.obj["spec"]
            if spec.get("nodeName") == item.name and spec["driver"] == self._spec.driver:
                self._cluster.delete("resourceslices", published.obj["metadata"]["name"])
