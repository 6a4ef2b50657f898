"""Which volumes the claims of a pod can have on each node: for all nodes at once.

Source: ``FindPodVolumes`` of kube-scheduler's volume binder and ``FindMatchingVolume`` of
component-helpers, 1.36. Where Kubernetes leaves the choice between volumes of one size to chance,
the name decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from asched.framework.csi_migration import in_tree_persistent_volume, translated
from asched.framework.csi_nodes import CsiNodes
from asched.framework.node_matching import matchable, selector_matches, term_matches
from asched.framework.nodes import BoolColumn, Cluster, Int32Column, Nodes, RowArray
from asched.framework.volume_books import ClaimRef, VolumeBinding, VolumeBooks, VolumeChoice
from asched.framework.volumes import STORAGE
from asched.model.quantity import thousandths, value
from asched.model.selectors import (
    LabelSelector,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from asched.model.storage import (
    CSIDriver,
    CSIStorageCapacity,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologySelectorTerm,
)

NODE_CONFLICT = 1
NO_MATCH = 2
NO_SPACE = 4
NO_VOLUME = 8

AVAILABLE = "Available"
NO_PROVISIONER = "kubernetes.io/no-provisioner"


class Candidates(NamedTuple):
    """The volumes of a class that no claim has, by increasing size."""

    sizes: list[int]
    """In thousandths."""
    volumes: list[PersistentVolume]


class Match(NamedTuple):
    """A claim's volume on each node."""

    claim: PersistentVolumeClaim
    volumes: Sequence[PersistentVolume]
    chosen: Int32Column
    """Index into :attr:`volumes` by row, -1 for none."""


class PodVolumes(NamedTuple):
    """What a pod's claims find on each node."""

    conflicts: Int32Column
    """By row, what stands against it: NODE_CONFLICT, NO_MATCH, NO_SPACE, NO_VOLUME, added up."""
    matches: Sequence[Match]
    provisions: Sequence[tuple[PersistentVolumeClaim, BoolColumn]]
    """Claims whose volume is to be made, and on which rows."""

    def choice(self, row: int) -> VolumeChoice:
        return VolumeChoice(
            tuple(
                VolumeBinding(ClaimRef.of(match.claim), match.volumes[match.chosen[row]].name)
                for match in self.matches
                if match.chosen[row] >= 0
            ),
            tuple(ClaimRef.of(claim) for claim, where in self.provisions if where[row]),
        )


def storage_request(claim: PersistentVolumeClaim) -> int:
    """How much the claim asks for, in thousandths of a byte."""
    return thousandths(claim.spec.resources.requests.get(STORAGE, 0))


def refers_to(reference: ObjectReference | None, claim: PersistentVolumeClaim) -> bool:
    """Whether a volume's claimRef means the claim; one without UID was written by a user."""
    return (
        reference is not None
        and (reference.namespace, reference.name) == (claim.namespace, claim.name)
        and reference.uid in ("", claim.uid)
    )


def labels_allow(volume: PersistentVolume, labels: dict[str, str]) -> bool:
    """Whether the volume can be reached from a node with these labels (``CheckNodeAffinity``)."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return _reachable(affinity.required).matches(labels, "")


def _reachable(selector: NodeSelector) -> NodeSelector:
    """The selector as Kubernetes applies it to volumes: it shows it a node without a name, so what
    demands one never matches."""
    terms = matchable(selector).node_selector_terms
    if any(term.match_fields for term in terms):
        terms = tuple(
            NodeSelectorTerm(match_expressions=term.match_expressions)
            for term in terms
            if all(requirement.operator == "NotIn" for requirement in term.match_fields)
        )
    return NodeSelector(node_selector_terms=terms)


class VolumePool:
    """The volumes of the cluster, sorted for matching."""

    def __init__(self, cluster: Cluster, books: VolumeBooks) -> None:
        self._cluster = cluster
        self._books = books
        self._version = -1
        self._free: dict[str, Candidates] = {}
        self._claimed: dict[str, list[PersistentVolume]] = {}

    def free(self, claim: PersistentVolumeClaim) -> Iterator[PersistentVolume]:
        """Volumes that the claim could have, the smallest first, wherever they are."""
        self._catch_up()
        spec = claim.spec
        candidates = self._free.get(claim.storage_class)
        if candidates is None:
            return
        for volume in candidates.volumes[bisect_left(candidates.sizes, storage_request(claim)) :]:
            if (
                volume.spec.volume_mode == spec.volume_mode
                and (spec.selector is None or spec.selector.matches(volume.labels))
                and set(spec.access_modes) <= set(volume.spec.access_modes)
                and self._books.claimant(volume.name) is None
            ):
                yield volume

    def prebound(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """The volume that is meant for the claim, by its claimRef or by our own promise."""
        self._catch_up()
        volumes = self._cluster.objects(PersistentVolume)
        found = [v for v in self._claimed.get(claim.key, ()) if refers_to(v.spec.claim_ref, claim)]
        promised = (volumes.get(name) for name in self._books.promised_to(claim))
        found.extend(volume for volume in promised if volume is not None)
        fitting = [
            volume
            for volume in found
            if volume.storage_class == claim.storage_class
            and _size(volume) >= storage_request(claim)
            and volume.spec.volume_mode == claim.spec.volume_mode
            and volume.metadata.deletion_timestamp is None
        ]
        return min(fitting, key=lambda volume: volume.name, default=None)

    def _catch_up(self) -> None:
        version = self._cluster.objects_version(PersistentVolume)
        if version == self._version:
            return
        self._version = version
        self._claimed = {}
        free: dict[str, list[tuple[int, str, PersistentVolume]]] = {}
        for volume in self._cluster.objects(PersistentVolume).values():
            reference = volume.spec.claim_ref
            if reference is not None:
                key = f"{reference.namespace}/{reference.name}"
                self._claimed.setdefault(key, []).append(volume)
            elif volume.status.phase == AVAILABLE and volume.metadata.deletion_timestamp is None:
                entry = (_size(volume), volume.name, volume)
                free.setdefault(volume.storage_class, []).append(entry)
        self._free = {}
        for name, entries in free.items():
            entries.sort(key=lambda entry: entry[:2])
            self._free[name] = Candidates([e[0] for e in entries], [e[2] for e in entries])


def _size(volume: PersistentVolume) -> int:
    return thousandths(volume.spec.capacity.get(STORAGE, 0))


class VolumeFinder:
    """Finds volumes for the claims of one pod, on some nodes."""

    def __init__(
        self, cluster: Cluster, books: VolumeBooks, pool: VolumePool, csi: CsiNodes, nodes: Nodes
    ) -> None:
        self._cluster = cluster
        self._books = books
        self._pool = pool
        self._csi = csi
        self._nodes = nodes
        self._rows: dict[NodeSelector, RowArray] = {}
        self._by_label: dict[str, tuple[RowArray, Int32Column]] = {}

    def find(
        self, bound: Sequence[PersistentVolumeClaim], unbound: Sequence[PersistentVolumeClaim]
    ) -> PodVolumes:
        """``unbound`` are the claims that wait for their first consumer."""
        conflicts = np.zeros(self._nodes.size, np.int32)
        self._check_bound(bound, conflicts)
        open_rows, assigned, rest = self._follow_chosen_nodes(unbound, conflicts)
        rest.sort(key=lambda claim: (storage_request(claim), claim.name))
        matches: list[Match] = []
        taken: dict[str, BoolColumn] = {}
        provisions = [(claim, open_rows) for claim in assigned]
        for claim in rest:
            match = self._match(claim, taken)
            matches.append(match)
            without = open_rows & (match.chosen < 0)
            if without.any():
                provisions.append((claim, without))
        self._check_provisions(provisions, conflicts, open_rows)
        return PodVolumes(conflicts, matches, provisions)

    # -- bound claims -------------------------------------------------------------------------

    def _check_bound(self, claims: Sequence[PersistentVolumeClaim], conflicts: Int32Column) -> None:
        """The first claim that fails decides."""
        volumes = self._cluster.objects(PersistentVolume)
        still_good = np.ones(self._nodes.size, np.bool_)
        for claim in claims:
            volume = volumes.get(claim.spec.volume_name)
            if volume is None:
                conflicts[still_good] |= NO_VOLUME
                return
            bad = still_good & ~self._reaches(volume)
            conflicts[bad] |= NODE_CONFLICT
            still_good &= ~bad

    def _reaches(self, volume: PersistentVolume) -> BoolColumn:
        """Where a bound volume can be reached, in the terms of its CSI driver where migrated."""
        reaches = self._mask(volume)
        in_tree = in_tree_persistent_volume(volume)
        if in_tree is None:
            return reaches
        migrated = self._csi.migrated(in_tree.plugin.name, self._nodes)
        if not migrated.any():
            return reaches
        return np.where(migrated, self._mask(translated(volume, in_tree.plugin)), reaches)

    def _mask(self, volume: PersistentVolume) -> BoolColumn:
        rows = self._reachable_rows(volume)
        if rows is None:
            return np.ones(self._nodes.size, np.bool_)
        mask = np.zeros(self._nodes.size, np.bool_)
        mask[rows] = True
        return mask

    def _reachable_rows(self, volume: PersistentVolume) -> RowArray | None:
        """The rows from which a volume can be reached, None for all."""
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return None
        selector = affinity.required
        rows = self._rows.get(selector)
        if rows is None:
            label = _only_label(selector)
            if label is not None:
                rows = self._rows_with(label)
            else:
                rows = np.flatnonzero(selector_matches(_reachable(selector), self._nodes))
            self._rows[selector] = rows
        return rows

    def _rows_with(self, label: tuple[str, str]) -> RowArray:
        """The rows of one label value, looked up rather than searched for: local volumes come by
        the thousand, each on its own node."""
        key, text = label
        column = self._nodes.label(key)
        index = self._by_label.get(key)
        if index is None:
            order = np.argsort(column.ids, kind="stable")
            index = self._by_label[key] = order, column.ids[order]
        order, ids = index
        number = column.number(text)
        return order[np.searchsorted(ids, number) : np.searchsorted(ids, number, side="right")]

    # -- claims to bind -----------------------------------------------------------------------

    def _follow_chosen_nodes(
        self, claims: Sequence[PersistentVolumeClaim], conflicts: Int32Column
    ) -> tuple[BoolColumn, list[PersistentVolumeClaim], list[PersistentVolumeClaim]]:
        """(rows that no earlier choice of a node rules out, claims with such a choice, the rest)."""
        open_rows = np.ones(self._nodes.size, np.bool_)
        assigned, rest = [], []
        for claim in claims:
            node = self._books.chosen_node(claim) or claim.metadata.annotations.selected_node
            if node is None:
                rest.append(claim)
                continue
            assigned.append(claim)
            row = self._nodes.row_of(node)
            here = np.zeros(self._nodes.size, np.bool_)
            if row is not None:
                here[row] = True
            open_rows &= here
        conflicts[~open_rows] |= NO_MATCH
        return open_rows, assigned, rest

    def _match(self, claim: PersistentVolumeClaim, taken: dict[str, BoolColumn]) -> Match:
        """The smallest volume that fits, on each row, but none ``taken`` there by a claim before."""
        size = self._nodes.size
        chosen = np.full(size, -1, np.int32)
        volumes: list[PersistentVolume] = []
        prebound = self._pool.prebound(claim)
        left = size
        for volume in (prebound,) if prebound is not None else self._pool.free(claim):
            rows = self._reachable_rows(volume)
            hit = np.flatnonzero(chosen < 0) if rows is None else rows[chosen[rows] < 0]
            used = taken.get(volume.name)
            if used is not None:
                hit = hit[~used[hit]]
            if not len(hit):
                continue
            chosen[hit] = len(volumes)
            volumes.append(volume)
            if used is None:
                used = taken[volume.name] = np.zeros(size, np.bool_)
            used[hit] = True
            left -= len(hit)
            if not left:
                break
        return Match(claim, volumes, chosen)

    # -- claims to provision ------------------------------------------------------------------

    def _check_provisions(
        self,
        provisions: Sequence[tuple[PersistentVolumeClaim, BoolColumn]],
        conflicts: Int32Column,
        open_rows: BoolColumn,
    ) -> None:
        """On each row the first claim that fails decides."""
        still_good = open_rows.copy()
        for claim, where in provisions:
            storage_class = self._cluster.objects(StorageClass)[claim.storage_class]
            asked = still_good & where
            can_make = asked & self._can_provision(storage_class)
            conflicts[asked & ~can_make] |= NO_MATCH
            has_room = can_make & self._has_capacity(storage_class, claim)
            conflicts[can_make & ~has_room] |= NO_SPACE
            still_good &= ~asked | has_room

    def _can_provision(self, storage_class: StorageClass) -> BoolColumn:
        if storage_class.provisioner in ("", NO_PROVISIONER):
            return np.zeros(self._nodes.size, np.bool_)
        terms = storage_class.allowed_topologies
        matched = np.full(self._nodes.size, not terms, np.bool_)
        for term in terms:
            matched |= self._in_topology(term)
        return matched

    def _in_topology(self, term: TopologySelectorTerm) -> BoolColumn:
        """An empty term matches no node."""
        matched = np.full(self._nodes.size, bool(term.match_label_expressions), np.bool_)
        for requirement in term.match_label_expressions:
            matched &= self._nodes.label(requirement.key).is_in(requirement.values)
        return matched

    def _has_capacity(
        self, storage_class: StorageClass, claim: PersistentVolumeClaim
    ) -> BoolColumn:
        """Where the driver reports room; everywhere for a driver that reports none."""
        size = self._nodes.size
        driver = self._cluster.objects(CSIDriver).get(storage_class.provisioner)
        asked = claim.spec.resources.requests.get(STORAGE)
        if asked is None or driver is None or not driver.spec.storage_capacity:
            return np.ones(size, np.bool_)
        needed = value(asked)
        room = np.zeros(size, np.bool_)
        for capacity in self._cluster.objects(CSIStorageCapacity).values():
            limit = volume_limit(capacity)
            if capacity.storage_class_name != storage_class.name or capacity.node_topology is None:
                continue
            if limit is not None and limit >= needed:
                room |= labels_select(capacity.node_topology, self._nodes)
        return room


def volume_limit(capacity: CSIStorageCapacity) -> int | None:
    """The largest volume that a storage pool can make, bytes; None where it does not say."""
    limit = capacity.maximum_volume_size
    if limit is None:
        limit = capacity.capacity
    return None if limit is None else value(limit)


def labels_select(selector: LabelSelector, nodes: Nodes) -> BoolColumn:
    """Where a label selector matches the node's labels."""
    requirements = (
        *(
            NodeSelectorRequirement(key=key, operator="In", values=(text,))
            for key, text in selector.match_labels.items()
        ),
        *(
            NodeSelectorRequirement(key=r.key, operator=r.operator, values=r.values)
            for r in selector.match_expressions
        ),
    )
    if not requirements:
        return np.ones(nodes.size, np.bool_)
    return term_matches(NodeSelectorTerm(match_expressions=requirements), nodes)


def _only_label(selector: NodeSelector) -> tuple[str, str] | None:
    """The one label value that a selector asks for, if that is all it asks."""
    if len(selector.node_selector_terms) != 1:
        return None
    term = selector.node_selector_terms[0]
    if term.match_fields or len(term.match_expressions) != 1:
        return None
    requirement = term.match_expressions[0]
    if requirement.operator != "In" or len(requirement.values) != 1:
        return None
    return requirement.key, requirement.values[0]
