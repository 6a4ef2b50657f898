"""The volumes that a pod's claims can use, for all nodes at once.

Source: ``FindPodVolumes`` of kube-scheduler's volume binder, 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from asched.framework.binding import ClaimRef
from asched.framework.cluster import Cluster
from asched.framework.node_matching import selector_matches, term_matches
from asched.framework.nodes import BoolColumn, Int32Column, Nodes
from asched.framework.volumes import STORAGE, CsiNodes, in_tree_persistent_volume, translated
from asched.model.quantity import value
from asched.model.selectors import (
    LabelSelector,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    matchable,
)
from asched.model.storage import (
    CSIDriver,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologySelectorTerm,
)
from asched.plugins.volume_binding.assumed import AssumedVolume, AssumedVolumes, VolumeChoice
from asched.plugins.volume_binding.pool import VolumePool, storage_request

NODE_CONFLICT = 1
NO_MATCH = 2
NO_SPACE = 4
NO_VOLUME = 8

NO_PROVISIONER = "kubernetes.io/no-provisioner"


class Match(NamedTuple):
    """The matching volume of a claim on each node."""

    claim: PersistentVolumeClaim
    volumes: Sequence[PersistentVolume]
    chosen: Int32Column
    """By row, the index into :attr:`volumes`; -1 for none."""


class PodVolumes(NamedTuple):
    """The result for a pod's claims on each node."""

    conflicts: Int32Column
    """By row: the sum of NODE_CONFLICT, NO_MATCH, NO_SPACE and NO_VOLUME as they apply."""
    matches: Sequence[Match]
    provisions: Sequence[tuple[PersistentVolumeClaim, BoolColumn]]
    """Claims with a volume to provision, and the rows for which it is."""

    def choice(self, row: int) -> VolumeChoice:
        return VolumeChoice(
            tuple(
                AssumedVolume(ClaimRef.of(match.claim), match.volumes[match.chosen[row]].name)
                for match in self.matches
                if match.chosen[row] >= 0
            ),
            tuple(ClaimRef.of(claim) for claim, where in self.provisions if where[row]),
        )


def labels_allow(volume: PersistentVolume, labels: dict[str, str]) -> bool:
    """Whether the volume is accessible from a node with these labels (``CheckNodeAffinity``)."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return _volume_selector(affinity.required).matches(labels, "")


@lru_cache(maxsize=4096)
def _volume_selector(selector: NodeSelector) -> NodeSelector:
    """The selector as Kubernetes evaluates it for volumes: against a node without a name, so a term
    that requires a name never matches."""
    terms = matchable(selector).node_selector_terms
    if any(term.match_fields for term in terms):
        terms = tuple(
            NodeSelectorTerm(match_expressions=term.match_expressions)
            for term in terms
            if all(requirement.operator == "NotIn" for requirement in term.match_fields)
        )
    return NodeSelector(node_selector_terms=terms)


class VolumeFinder(NamedTuple):
    """Finds volumes for the claims of a pod on some nodes."""

    cluster: Cluster
    assumed: AssumedVolumes
    pool: VolumePool
    csi: CsiNodes
    nodes: Nodes

    def find(
        self, bound: Sequence[PersistentVolumeClaim], unbound: Sequence[PersistentVolumeClaim]
    ) -> PodVolumes:
        """``unbound``: the claims with ``WaitForFirstConsumer``."""
        conflicts = np.zeros(self.nodes.size, np.int32)
        self._check_bound(bound, conflicts)
        open_rows, with_node, rest = self._split_by_selected_node(unbound, conflicts)
        rest.sort(key=lambda claim: (storage_request(claim), claim.name))
        matches: list[Match] = []
        taken: dict[str, list[Int32Column]] = {}
        provisions = [(claim, open_rows) for claim in with_node]
        for claim in rest:
            match = self._match(claim, taken)
            matches.append(match)
            without = open_rows & (match.chosen < 0)
            if without.any():
                provisions.append((claim, without))
        self._check_provisions(provisions, conflicts, open_rows)
        return PodVolumes(conflicts, matches, provisions)

    def _check_bound(self, claims: Sequence[PersistentVolumeClaim], conflicts: Int32Column) -> None:
        """On each row, the first failing claim determines the conflict."""
        volumes = self.cluster.objects(PersistentVolume)
        passing = np.ones(self.nodes.size, np.bool_)
        for claim in claims:
            volume = volumes.get(claim.spec.volume_name)
            if volume is None:
                conflicts[passing] |= NO_VOLUME
                return
            bad = passing & ~self._accessible(volume)
            conflicts[bad] |= NODE_CONFLICT
            passing &= ~bad

    def _accessible(self, volume: PersistentVolume) -> BoolColumn:
        """Rows from which a bound volume is accessible; translated to CSI on rows that migrate
        it."""
        accessible = self._mask(volume)
        in_tree = in_tree_persistent_volume(volume)
        if in_tree is None:
            return accessible
        migrated = self.csi.migrated(in_tree.plugin.name, self.nodes)
        if not migrated.any():
            return accessible
        return np.where(migrated, self._mask(translated(volume, in_tree.plugin)), accessible)

    def _mask(self, volume: PersistentVolume) -> BoolColumn:
        """Rows from which a volume is accessible."""
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return np.ones(self.nodes.size, np.bool_)
        return selector_matches(_volume_selector(affinity.required), self.nodes)

    def _split_by_selected_node(
        self, claims: Sequence[PersistentVolumeClaim], conflicts: Int32Column
    ) -> tuple[BoolColumn, list[PersistentVolumeClaim], list[PersistentVolumeClaim]]:
        """(rows that all selected nodes allow, claims with a selected node, the other claims)."""
        open_rows = np.ones(self.nodes.size, np.bool_)
        with_node, rest = [], []
        for claim in claims:
            node = self.assumed.selected_node(claim) or claim.metadata.annotations.selected_node
            if node is None:
                rest.append(claim)
                continue
            with_node.append(claim)
            row = self.nodes.row_of(node)
            here = np.zeros(self.nodes.size, np.bool_)
            if row is not None:
                here[row] = True
            open_rows &= here
        conflicts[~open_rows] |= NO_MATCH
        return open_rows, with_node, rest

    def _match(self, claim: PersistentVolumeClaim, taken: dict[str, list[Int32Column]]) -> Match:
        """The smallest volume that fits on each row, without those ``taken`` there by earlier
        claims."""
        prebound = self.pool.prebound(claim)
        if prebound is not None:
            return Match(claim, (prebound,), self._mask(prebound).astype(np.int32) - 1)
        free = self.pool.free(claim.storage_class)
        if free is None:
            return Match(claim, (), np.full(self.nodes.size, -1, np.int32))
        of_class = taken.setdefault(claim.storage_class, [])
        exclude = self.assumed.volumes
        chosen = free.smallest(claim, self.nodes, exclude, of_class, self._mask)
        of_class.append(chosen)
        return Match(claim, free.volumes, chosen)

    def _check_provisions(
        self,
        provisions: Sequence[tuple[PersistentVolumeClaim, BoolColumn]],
        conflicts: Int32Column,
        open_rows: BoolColumn,
    ) -> None:
        """On each row, the first failing claim determines the conflict."""
        passing = open_rows.copy()
        for claim, where in provisions:
            storage_class = self.cluster.objects(StorageClass)[claim.storage_class]
            requested = passing & where
            possible = requested & self._can_provision(storage_class)
            conflicts[requested & ~possible] |= NO_MATCH
            has_space = possible & self._has_capacity(storage_class, claim)
            conflicts[possible & ~has_space] |= NO_SPACE
            passing &= ~requested | has_space

    def _can_provision(self, storage_class: StorageClass) -> BoolColumn:
        if storage_class.provisioner in ("", NO_PROVISIONER):
            return np.zeros(self.nodes.size, np.bool_)
        terms = storage_class.allowed_topologies
        matched = np.full(self.nodes.size, not terms, np.bool_)
        for term in terms:
            matched |= self._in_topology(term)
        return matched

    def _in_topology(self, term: TopologySelectorTerm) -> BoolColumn:
        """An empty term matches no node."""
        matched = np.full(self.nodes.size, bool(term.match_label_expressions), np.bool_)
        for requirement in term.match_label_expressions:
            matched &= self.nodes.label(requirement.key).is_in(requirement.values)
        return matched

    def _has_capacity(
        self, storage_class: StorageClass, claim: PersistentVolumeClaim
    ) -> BoolColumn:
        """Where the driver reports enough capacity; everywhere if it reports none."""
        size = self.nodes.size
        driver = self.cluster.objects(CSIDriver).get(storage_class.provisioner)
        asked = claim.spec.resources.requests.get(STORAGE)
        if asked is None or driver is None or not driver.spec.storage_capacity:
            return np.ones(size, np.bool_)
        needed = value(asked)
        found = np.zeros(size, np.bool_)
        for capacity in self.cluster.objects(CSIStorageCapacity).values():
            limit = volume_limit(capacity)
            if capacity.storage_class_name != storage_class.name or capacity.node_topology is None:
                continue
            if limit is not None and limit >= needed:
                found |= labels_select(capacity.node_topology, self.nodes)
        return found


def volume_limit(capacity: CSIStorageCapacity) -> int | None:
    """The maximum volume size of a storage pool, bytes; None if unknown."""
    limit = capacity.maximum_volume_size
    if limit is None:
        limit = capacity.capacity
    return None if limit is None else value(limit)


def labels_select(selector: LabelSelector, nodes: Nodes) -> BoolColumn:
    """By row: whether the node labels match the selector."""
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
