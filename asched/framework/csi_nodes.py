"""What CSI says of nodes, in columns: attach limits, and which in-tree plugins were migrated."""

from __future__ import annotations

import numpy as np

from asched.framework.cluster import Cluster
from asched.framework.csi_migration import migrated_plugins
from asched.framework.nodes import BoolColumn, Int64Column, Nodes
from asched.model.quantity import MAX_INT64
from asched.model.storage import CSINode

NO_LIMIT = MAX_INT64


def volume_limits(node: CSINode) -> dict[str, int]:
    """How many volumes of each driver can be attached, for drivers that state a number."""
    return {
        driver.name: driver.allocatable.count
        for driver in node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


class CsiNodes:
    """The CSINodes of a cluster by row of its nodes. Columns are kept while neither the CSINodes
    nor the choice of nodes changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version: tuple[int, int, int] | None = None
        self._limits: dict[str, Int64Column] = {}
        self._migrated: dict[str, BoolColumn] = {}

    def limit(self, driver: str, nodes: Nodes) -> Int64Column | None:
        """How many volumes of the driver each node takes (:data:`NO_LIMIT` where it does not say);
        None where no node says."""
        self._catch_up()
        column = self._limits.get(driver)
        return None if column is None else nodes.align(column)

    def migrated(self, plugin: str, nodes: Nodes) -> BoolColumn:
        """Where the in-tree plugin's volumes are attached through its CSI driver."""
        self._catch_up()
        column = self._migrated.get(plugin)
        return np.zeros(nodes.size, np.bool_) if column is None else nodes.align(column)

    def _catch_up(self) -> None:
        nodes = self._cluster.nodes
        version = (self._cluster.objects_version(CSINode), nodes.version, nodes.size)
        if version == self._version:
            return
        self._version = version
        self._limits.clear()
        self._migrated.clear()
        for csi_node in self._cluster.objects(CSINode).values():
            row = nodes.row_of(csi_node.name)
            if row is None:
                continue
            for driver, limit in volume_limits(csi_node).items():
                column = self._limits.get(driver)
                if column is None:
                    column = self._limits[driver] = np.full(nodes.size, NO_LIMIT, np.int64)
                column[row] = limit
            for plugin in migrated_plugins(csi_node):
                if plugin not in self._migrated:
                    self._migrated[plugin] = np.zeros(nodes.size, np.bool_)
                self._migrated[plugin][row] = True
