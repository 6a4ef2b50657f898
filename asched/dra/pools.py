"""Pools of devices, as nodes see them.

A node sees the slices of a pool that are relevant to it. Of those, only the slices with the highest
generation count. A pool is incomplete until all its slices are published, and invalid if it
contradicts itself; neither offers devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from asched.dra.capacity import amount
from asched.dra.devices import NodeView, PooledDevice, PoolID
from asched.model.resource_claims import ResourceSlice
from asched.model.selectors import NodeSelector

Counters = dict[tuple[str, str], int]
"""Amounts in billionths by counter set and counter."""


Bits = int
"""A set of positions in a list of devices."""


class DeviceSelection:
    """Which devices of a slice are for which nodes."""

    def __init__(self, devices: Sequence[PooledDevice]) -> None:
        self._of_node: dict[str, Bits] = {}
        self._of_all: Bits = 0
        self._selected: dict[NodeSelector, Bits] = {}
        for position, pooled in enumerate(devices):
            device, bit = pooled.device, 1 << position
            if device.node_name:
                self._of_node[device.node_name] = self._of_node.get(device.node_name, 0) | bit
            elif device.all_nodes:
                self._of_all |= bit
            elif device.node_selector is not None:
                selector = device.node_selector
                self._selected[selector] = self._selected.get(selector, 0) | bit

    def here(self, node: NodeView) -> Bits:
        """The devices for a node."""
        bits = self._of_all | self._of_node.get(node.name, 0)
        for selector, selected in self._selected.items():
            if selector.matches(node.labels, node.name):
                bits |= selected
        return bits


class SliceDevices:
    """A slice with its devices."""

    __slots__ = ("devices", "resource_slice", "selection")

    def __init__(self, resource_slice: ResourceSlice, devices: tuple[PooledDevice, ...]) -> None:
        self.resource_slice = resource_slice
        self.devices = devices
        per_device = resource_slice.spec.per_device_node_selection
        self.selection = DeviceSelection(devices) if per_device else None
        """None if all devices are for the same nodes."""

    def devices_for(self, node: NodeView) -> Iterator[PooledDevice]:
        """The devices that are for a node, whatever the state of their pool."""
        spec = self.resource_slice.spec
        if self.selection is not None:
            here = self.selection.here(node)
            yield from (each for at, each in enumerate(self.devices) if here >> at & 1)
        elif node_matches(node, spec.node_name, spec.all_nodes, spec.node_selector):
            yield from self.devices


class DeviceCandidate(NamedTuple):
    """A device of a pool that a node sees."""

    device: PooledDevice
    pool: PoolView


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """A pool as some nodes see it."""

    pool_id: PoolID
    serial: int
    """Unique among all views ever made."""
    incomplete: bool = False
    invalid: str = ""
    """Why the pool is invalid; empty for a valid pool."""
    devices: tuple[PooledDevice, ...] = ()
    """In the order in which they are tried."""
    positions: dict[str, int] = field(default_factory=dict)
    """The index of each device by its name."""
    elsewhere: Bits = 0
    """Those of the devices that are not for these nodes."""
    offering: tuple[SliceDevices, ...] = ()
    """The slices of the devices."""
    candidates: list[DeviceCandidate] = field(default_factory=list)
    """The devices, shared by all views that differ in :attr:`elsewhere` alone."""
    base: int = 0
    """Equal for views that share :attr:`candidates`."""
    counters: Counters = field(default_factory=dict)
    consumers: tuple[PooledDevice, ...] = ()
    """All devices of the pool that consume counters, also those of other nodes."""
    has_binding_conditions: bool = False

    @property
    def usable(self) -> bool:
        return not self.incomplete and not self.invalid

    @property
    def usable_devices(self) -> tuple[PooledDevice, ...]:
        """The devices that are for these nodes; none unless the pool is complete and valid."""
        if not self.elsewhere:
            return self.devices
        return tuple(
            device
            for position, device in enumerate(self.devices)
            if not self.elsewhere >> position & 1
        )

    def without(self, elsewhere: Bits, serial: int) -> PoolView:
        """The same view for nodes that cannot use some of the devices."""
        return replace(self, elsewhere=elsewhere, serial=serial)

    def elsewhere_for(self, node: NodeView) -> Bits:
        """The devices that are not for a node."""
        bits, offset = 0, 0
        for item in self.offering:
            number = len(item.devices)
            if item.selection is not None:
                bits |= (((1 << number) - 1) & ~item.selection.here(node)) << offset
            offset += number
        return bits

    @property
    def order(self) -> tuple[bool, PoolID]:
        """Pools are tried in this order."""
        return (self.has_binding_conditions, self.pool_id)


def node_matches(
    node: NodeView, node_name: str, all_nodes: bool, selector: NodeSelector | None
) -> bool:
    """Whether a slice or device with this selection of nodes can be used on the node."""
    if node_name:
        return node_name == node.name
    if all_nodes:
        return True
    return selector is not None and selector.matches(node.labels, node.name)


def is_relevant(item: SliceDevices, node: NodeView) -> bool:
    """Whether a node sees the slice."""
    spec = item.resource_slice.spec
    if spec.shared_counters:
        return True
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return node_matches(node, spec.node_name, spec.all_nodes, spec.node_selector)
    return item.selection is not None and item.selection.here(node) != 0


def build_view(
    pool_id: PoolID,
    serial: int,
    relevant: Sequence[SliceDevices],
    published: Sequence[SliceDevices],
) -> PoolView | None:
    """The pool as nodes with these relevant slices see it.

    ``relevant`` is not empty; both are sorted by name. Returns None if the pool does not exist for
    these nodes, because its newer slices are for other nodes.
    """
    generation = max(_generation(item) for item in relevant)
    current = [item for item in relevant if _generation(item) == generation]
    wanted = current[0].resource_slice.spec.pool.resource_slice_count
    everything = current
    if len(current) != wanted:
        if any(_generation(item) > generation for item in published):
            return None
        everything = [item for item in published if _generation(item) == generation]
        if len(everything) != wanted:
            return PoolView(pool_id, serial, incomplete=True)
    return _complete_view(pool_id, serial, current, everything)


def _generation(item: SliceDevices) -> int:
    return item.resource_slice.spec.pool.generation


def _complete_view(
    pool_id: PoolID, serial: int, current: list[SliceDevices], everything: list[SliceDevices]
) -> PoolView:
    offering = [item for item in current if not item.resource_slice.spec.shared_counters]
    counters: Counters = {}
    problem = (
        _duplicate_device(offering)
        or _collect_counters(current, counters)
        or _unknown_counter(everything, counters)
    )
    if problem:
        return PoolView(pool_id, serial, invalid=problem)
    devices = tuple(device for item in offering for device in item.devices)
    view = PoolView(
        pool_id,
        serial,
        base=serial,
        offering=tuple(offering),
        devices=devices,
        positions={device.name: index for index, device in enumerate(devices)},
        counters=counters,
        consumers=tuple(d for item in everything for d in item.devices if d.counters),
        has_binding_conditions=any(d.device.binding_conditions for d in devices),
    )
    view.candidates.extend(DeviceCandidate(device, view) for device in devices)
    return view


def _duplicate_device(items: Iterable[SliceDevices]) -> str:
    names: set[str] = set()
    for item in items:
        for device in item.devices:
            if device.name in names:
                return f"duplicate device name {device.name}"
            names.add(device.name)
    return ""


def _collect_counters(items: Iterable[SliceDevices], counters: Counters) -> str:
    seen: set[str] = set()
    for item in items:
        for counter_set in item.resource_slice.spec.shared_counters:
            if counter_set.name in seen:
                return f"duplicate counter set name {counter_set.name}"
            seen.add(counter_set.name)
            for name, counter in counter_set.counters.items():
                counters[counter_set.name, name] = amount(counter.value)
    return ""


def _unknown_counter(items: Iterable[SliceDevices], counters: Counters) -> str:
    sets = {counter_set for counter_set, _ in counters}
    for item in items:
        for device in item.devices:
            for consumed in device.device.consumes_counters:
                if consumed.counter_set not in sets:
                    return f"counter set {consumed.counter_set} not found"
            for use in device.counters:
                if (use.counter_set, use.counter) not in counters:
                    return f"counter {use.counter} not found in counter set {use.counter_set}"
    return ""


class NodeTraits(NamedTuple):
    """Labels, and names of single nodes."""

    labels: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    @classmethod
    def of_all(cls, parts: Iterable[NodeTraits]) -> NodeTraits:
        """Everything that any of the parts reads."""
        labels: set[str] = set()
        names: set[str] = set()
        for part in parts:
            labels.update(part.labels)
            names.update(part.names)
        return cls(tuple(sorted(labels)), frozenset(names))

    def read(self, node: NodeView) -> tuple[str | None, ...]:
        """Equal for nodes that see the same."""
        name = node.name if node.name in self.names else None
        return (name, *(node.labels.get(label) for label in self.labels))


def node_traits(items: Iterable[SliceDevices]) -> NodeTraits:
    """What decides which of these slices and of their devices a node sees."""
    names: set[str] = set()
    labels: set[str] = set()
    for item in items:
        spec = item.resource_slice.spec
        names.add(spec.node_name)
        selectors = [spec.node_selector]
        if spec.per_device_node_selection:
            names.update(device.device.node_name for device in item.devices)
            selectors += [device.device.node_selector for device in item.devices]
        for selector in selectors:
            labels.update(_labels(selector))
            names.update(_names(selector))
    return NodeTraits(tuple(sorted(labels)), frozenset(names))


def _labels(selector: NodeSelector | None) -> Iterator[str]:
    for term in selector.node_selector_terms if selector is not None else ():
        for requirement in term.match_expressions:
            yield requirement.key


def _names(selector: NodeSelector | None) -> Iterator[str]:
    for term in selector.node_selector_terms if selector is not None else ():
        for requirement in term.match_fields:
            yield from requirement.values
