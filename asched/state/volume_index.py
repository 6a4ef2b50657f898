"""What the pods on nodes mount: kept up to date from the log of pods that came and went.

Like all caches this is memory, not state: dropping it changes no answer. It is brought up to date
when it is asked, so clusters whose pods mount nothing pay for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from asched.framework.nodes import Int64Column
from asched.framework.pod_info import PodInfo
from asched.framework.volumes import is_attachable, is_disk
from asched.state.node_table import NodeTable


class VolumeIndex:
    """A :class:`asched.framework.volumes.MountedVolumes` over the node table."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._cursor = -1
        self._claims: Counter[str] = Counter()
        self._disks: dict[int, dict[str, PodInfo]] = {}
        self._attachable: Int64Column = np.zeros(0, np.int64)

    def pods_with_claim(self, key: str) -> int:
        self._catch_up()
        return self._claims[key]

    def pods_with_disks(self) -> Mapping[int, Mapping[str, PodInfo]]:
        self._catch_up()
        return self._disks

    @property
    def attachable(self) -> Int64Column:
        self._catch_up()
        return self._attachable

    def _catch_up(self) -> None:
        table = self._table
        changes: Iterable[tuple[int, PodInfo, int]] | None = table.pods_changed_since(self._cursor)
        if changes is None:
            self._claims.clear()
            self._disks.clear()
            self._attachable = np.zeros(table.size, np.int64)
            changes = self._all_pods()
        if len(self._attachable) != table.size:
            longer = np.zeros(table.size, np.int64)
            longer[: len(self._attachable)] = self._attachable
            self._attachable = longer
        for row, pod, sign in changes:
            if pod.pod.spec.volumes:
                self._count(row, pod, sign)
        self._cursor = table.pods_cursor

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        has_disk = False
        for volume in pod.pod.spec.volumes:
            claim = volume.persistent_volume_claim
            if claim is not None:
                self._count_claim(f"{pod.namespace}/{claim.claim_name}", sign)
            if is_attachable(volume):
                self._attachable[row] += sign
            has_disk = has_disk or is_disk(volume)
        if has_disk and sign > 0:
            self._disks.setdefault(row, {})[pod.uid] = pod
        elif has_disk:
            here = self._disks[row]
            del here[pod.uid]
            if not here:
                del self._disks[row]

    def _count_claim(self, key: str, sign: int) -> None:
        self._claims[key] += sign
        if not self._claims[key]:
            del self._claims[key]

    def _all_pods(self) -> Iterable[tuple[int, PodInfo, int]]:
        table = self._table
        for row in np.flatnonzero(table.alive).tolist():
            for pod in table.pods(row):
                yield row, pod, 1
