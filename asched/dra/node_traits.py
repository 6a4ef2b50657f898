"""What of a node decides which slices and devices it sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from asched.dra.devices import NodeView
from asched.dra.pools import SliceDevices
from asched.model.selectors import NodeSelector


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
