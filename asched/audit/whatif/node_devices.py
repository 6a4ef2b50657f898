"""The devices of added nodes: copies of the ResourceSlices of their template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from asched.model.resource_claims import ResourceSlice
from asched.model.selectors import NodeSelector
from asched.simulator.trace import ObjectRemoved, ObjectSet, TraceEvent

HOSTNAME: Final = "kubernetes.io/hostname"


class NodeDevices:
    """The pools of devices that drivers publish for some nodes, in their first complete form."""

    def __init__(self, events: Iterable[TraceEvent], nodes: frozenset[str]) -> None:
        self.shared: frozenset[str] = frozenset()
        """Nodes that have devices of a pool of several nodes, selected by the name of the node."""
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        """The present ones of each pool, by their names."""
        self._complete: dict[str, tuple[ResourceSlice, ...]] = {}
        for event in events:
            match event:
                case ObjectSet(object=ResourceSlice() as item):
                    self.shared |= nodes & frozenset(_selected_by_name(item))
                    if item.spec.node_name in nodes:
                        self._add(item)
                case ObjectRemoved(kind="ResourceSlice", key=key):
                    for present in self._slices.values():
                        present.pop(key, None)

    def _add(self, item: ResourceSlice) -> None:
        spec = item.spec
        pool = "/".join((spec.node_name, spec.driver, spec.pool.name))
        present = self._slices.setdefault(pool, {})
        present[item.metadata.name] = item
        newest = max(one.spec.pool.generation for one in present.values())
        same = tuple(one for one in present.values() if one.spec.pool.generation == newest)
        if pool not in self._complete and len(same) == spec.pool.resource_slice_count:
            self._complete[pool] = same

    def copies(self, template: str, name: str) -> Iterator[ResourceSlice]:
        """The slices of a node for its copy ``name``, in pools of their own."""
        for slices in self._complete.values():
            for item in slices:
                if item.spec.node_name == template:
                    yield _copy(item, template, name)


def _copy(item: ResourceSlice, template: str, name: str) -> ResourceSlice:
    def renamed(text: str) -> str:
        return text.replace(template, name) if template in text else f"{name}-{text}"

    replace, spec = msgspec.structs.replace, item.spec
    own = renamed(item.metadata.name)
    pool = replace(spec.pool, name=renamed(spec.pool.name))
    return replace(
        item,
        metadata=replace(item.metadata, name=own, uid=f"{own}-uid"),
        spec=replace(spec, node_name=name, pool=pool),
    )


def _selected_by_name(item: ResourceSlice) -> Iterator[str]:
    """The nodes that a slice without a node of its own names."""
    selectors = [item.spec.node_selector]
    for device in item.spec.devices:
        yield device.node_name
        selectors.append(device.node_selector)
    for selector in selectors:
        yield from _named(selector)


def _named(selector: NodeSelector | None) -> Iterator[str]:
    for term in selector.node_selector_terms if selector is not None else ():
        for field in term.match_fields:
            yield from field.values
        for label in term.match_expressions:
            if label.key == HOSTNAME:
                yield from label.values
