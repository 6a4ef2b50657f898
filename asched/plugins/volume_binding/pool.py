"""The volumes that claims may be bound to, indexed for matching against all nodes at once.

Source: ``FindMatchingVolume`` of component-helpers, 1.36. Kubernetes chooses randomly between
volumes of the same size; here the name breaks the tie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.cluster import Cluster
from asched.framework.nodes import BoolColumn, Int32Column, Nodes, RowArray, Vocabulary
from asched.framework.volumes import STORAGE
from asched.model.quantity import thousandths
from asched.model.selectors import NodeSelector
from asched.model.storage import (
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
)
from asched.plugins.volume_binding.assumed import AssumedVolumes

AVAILABLE = "Available"


def storage_request(claim: PersistentVolumeClaim) -> int:
    """The requested storage of a claim, in thousandths of a byte."""
    return thousandths(claim.spec.resources.requests.get(STORAGE, 0))


def refers_to(reference: ObjectReference | None, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume's claimRef refers to the claim; a user may have set it without a UID."""
    return (
        reference is not None
        and (reference.namespace, reference.name) == (claim.namespace, claim.name)
        and reference.uid in ("", claim.uid)
    )


def single_label(selector: NodeSelector) -> tuple[str, str] | None:
    """The label and value of a selector that requires exactly one value; None for other
    selectors."""
    if len(selector.node_selector_terms) != 1:
        return None
    term = selector.node_selector_terms[0]
    if term.match_fields or len(term.match_expressions) != 1:
        return None
    requirement = term.match_expressions[0]
    if requirement.operator != "In" or len(requirement.values) != 1:
        return None
    return requirement.key, requirement.values[0]


class _Group(NamedTuple):
    """Volumes that each require one value of the same node label (local volumes: the host name). An
    empty key is for volumes without node affinity."""

    key: str
    members: RowArray
    """Indices into the volumes, ascending."""
    values: Sequence[str]


def _mode(spec: PersistentVolumeSpec | PersistentVolumeClaimSpec) -> str:
    """Volume mode and VolumeAttributesClass, which a volume and its claim must share."""
    return f"{spec.volume_mode} {spec.volume_attributes_class_name or ''}"


class FreeVolumes:
    """The unclaimed volumes of one class, by increasing size.

    Often there are thousands of volumes, each for one node. So a table has the smallest volume for
    each value of the node label, and every row looks it up.
    """

    def __init__(self, volumes: Iterable[PersistentVolume]) -> None:
        ordered = sorted((_size(volume), volume.name, volume) for volume in volumes)
        self.volumes = [volume for _, _, volume in ordered]
        self._sizes = [size for size, _, _ in ordered]
        self._index = {volume.name: index for index, volume in enumerate(self.volumes)}
        words = self._words = Vocabulary()
        self._modes = np.array([words.intern(_mode(v.spec)) for v in self.volumes], np.int32)
        self._access = [frozenset(volume.spec.access_modes) for volume in self.volumes]
        self._by_access: dict[frozenset[str], list[int]] = {}
        for index, modes in enumerate(self._access):
            self._by_access.setdefault(modes, []).append(index)
        self._groups: list[_Group] = []
        self._others: list[int] = []
        """Volumes with any other node affinity."""
        self._group()
        self._numbers: dict[str, tuple[int, Int32Column]] = {}

    def _group(self) -> None:
        found: dict[str, tuple[list[int], list[str]]] = {}
        for index, volume in enumerate(self.volumes):
            affinity = volume.spec.node_affinity
            label: tuple[str, str] | None = ("", "")
            if affinity is not None and affinity.required is not None:
                label = single_label(affinity.required)
            if label is None:
                self._others.append(index)
                continue
            members, values = found.setdefault(label[0], ([], []))
            members.append(index)
            values.append(label[1])
        for key, (members, values) in found.items():
            self._groups.append(_Group(key, np.array(members, np.intp), values))

    def smallest(
        self,
        claim: PersistentVolumeClaim,
        nodes: Nodes,
        exclude: Iterable[str],
        taken: Sequence[Int32Column],
        mask: Callable[[PersistentVolume], BoolColumn],
    ) -> Int32Column:
        """By row, the smallest volume that fits, as an index into :attr:`volumes`; -1 for none.

        Volumes in ``exclude`` are not available on any row, ``taken`` ones (the results for other
        claims of the pod) not on their own row. ``mask`` returns where a volume is accessible.
        """
        none = len(self.volumes)
        fits = self._fitting(claim, exclude)
        best = np.full(nodes.size, none, np.int32)
        for group in self._groups:
            best = np.minimum(best, self._of_group(group, fits, nodes, taken))
        for index in self._others:
            if fits[index]:
                rows = np.flatnonzero(mask(self.volumes[index]))
                rows = rows[best[rows] > index]
                for column in taken:
                    rows = rows[column[rows] != index]
                best[rows] = index
        best[best == none] = -1
        return best

    def _fitting(self, claim: PersistentVolumeClaim, exclude: Iterable[str]) -> BoolColumn:
        spec = claim.spec
        fits: BoolColumn = self._modes == self._words.find(_mode(spec))
        fits[: bisect_left(self._sizes, storage_request(claim))] = False
        wanted = set(spec.access_modes)
        for modes, members in self._by_access.items():
            if not wanted <= modes:
                fits[members] = False
        for name in exclude:
            index = self._index.get(name)
            if index is not None:
                fits[index] = False
        if spec.selector is not None:
            for index in np.flatnonzero(fits).tolist():
                fits[index] = spec.selector.matches(self.volumes[index].labels)
        return fits

    def _of_group(
        self, group: _Group, fits: BoolColumn, nodes: Nodes, taken: Sequence[Int32Column]
    ) -> Int32Column:
        none = len(self.volumes)
        row_numbers, numbers = self._label_numbers(group, nodes)
        possible = fits[group.members] & (numbers >= 0)
        members, numbers = group.members[possible], numbers[possible]
        if not len(members):
            return np.full(nodes.size, none, np.int32)
        # Index -1 (no such label) is the additional last entry.
        highest = max(int(numbers.max()), int(row_numbers.max(initial=-1)))
        table = np.full(highest + 2, none, np.int32)
        # The last write wins: the smallest of several volumes with the same value.
        table[numbers[::-1]] = members[::-1]
        chosen: Int32Column = table[row_numbers]
        clash = self._clashes(chosen, taken)
        if clash.any():
            following = self._following(members, numbers)
            while clash.any():
                chosen[clash] = following[chosen[clash]]
                clash = self._clashes(chosen, taken)
        return chosen

    def _label_numbers(self, group: _Group, nodes: Nodes) -> tuple[Int32Column, Int32Column]:
        """(the label's value on each row, the value that each member requires), as numbers."""
        if not group.key:
            return np.zeros(nodes.size, np.int32), np.zeros(len(group.members), np.int32)
        column = nodes.label(group.key)
        known = self._numbers.get(group.key)
        if known is None or known[0] != nodes.version:
            numbers = np.array([column.number(value) for value in group.values], np.int32)
            known = self._numbers[group.key] = nodes.version, numbers
        return column.ids, known[1]

    def _clashes(self, chosen: Int32Column, taken: Sequence[Int32Column]) -> BoolColumn:
        clash = np.zeros(len(chosen), np.bool_)
        for column in taken:
            clash |= column == chosen
        clash &= chosen < len(self.volumes)
        return clash

    def _following(self, members: RowArray, numbers: Int32Column) -> Int32Column:
        """For each volume, the next larger one with the same value."""
        following = np.full(len(self.volumes) + 1, len(self.volumes), np.int32)
        order = np.lexsort((members, numbers))
        members, numbers = members[order], numbers[order]
        same = numbers[1:] == numbers[:-1]
        following[members[:-1][same]] = members[1:][same]
        return following


class VolumePool:
    """The volumes of the cluster by class and claim, updated incrementally."""

    def __init__(self, cluster: Cluster, assumed: AssumedVolumes) -> None:
        self._cluster = cluster
        self._assumed = assumed
        self._version = -1
        self._known: dict[str, PersistentVolume] = {}
        self._unclaimed: dict[str, dict[str, PersistentVolume]] = {}
        self._claimed: dict[str, dict[str, PersistentVolume]] = {}
        self._free: dict[str, FreeVolumes] = {}

    def free(self, storage_class: str) -> FreeVolumes | None:
        """The unclaimed volumes of a class; None if there are none."""
        self._update()
        unclaimed = self._unclaimed.get(storage_class)
        if not unclaimed:
            return None
        found = self._free.get(storage_class)
        if found is None:
            found = self._free[storage_class] = FreeVolumes(unclaimed.values())
        return found

    def prebound(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """The volume that is reserved for the claim, by its claimRef or as an assumed volume."""
        self._update()
        named = self._claimed.get(claim.key, {}).values()
        found = [volume for volume in named if refers_to(volume.spec.claim_ref, claim)]
        assumed = (self._known.get(name) for name in self._assumed.volumes_of(claim))
        found.extend(volume for volume in assumed if volume is not None)
        fitting = [
            volume
            for volume in found
            if volume.storage_class == claim.storage_class
            and _size(volume) >= storage_request(claim)
            and _mode(volume.spec) == _mode(claim.spec)
            and volume.metadata.deletion_timestamp is None
        ]
        return min(fitting, key=lambda volume: volume.name, default=None)

    def _update(self) -> None:
        version = self._cluster.objects_version(PersistentVolume)
        if version == self._version:
            return
        self._version = version
        volumes, known = self._cluster.objects(PersistentVolume), self._known
        for name in known.keys() - volumes.keys():
            self._remove(known.pop(name))
        for name, volume in volumes.items():
            before = known.get(name)
            if before is volume:
                continue
            if before is not None:
                self._remove(before)
            known[name] = volume
            self._add(volume)

    def _add(self, volume: PersistentVolume) -> None:
        reference = volume.spec.claim_ref
        if reference is not None:
            key = f"{reference.namespace}/{reference.name}"
            self._claimed.setdefault(key, {})[volume.name] = volume
        elif volume.status.phase == AVAILABLE and volume.metadata.deletion_timestamp is None:
            self._unclaimed.setdefault(volume.storage_class, {})[volume.name] = volume
            self._free.pop(volume.storage_class, None)

    def _remove(self, volume: PersistentVolume) -> None:
        reference = volume.spec.claim_ref
        if reference is not None:
            key = f"{reference.namespace}/{reference.name}"
            self._claimed[key].pop(volume.name)
            if not self._claimed[key]:
                del self._claimed[key]
        elif self._unclaimed.get(volume.storage_class, {}).pop(volume.name, None) is not None:
            self._free.pop(volume.storage_class, None)


def _size(volume: PersistentVolume) -> int:
    return thousandths(volume.spec.capacity.get(STORAGE, 0))
