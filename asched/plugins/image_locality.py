"""ImageLocality: prefer nodes that have the pod's images already."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import Scope, ScoreAllPlugin
from asched.framework.nodes import MAX_NODE_SCORE, Int64Column, Nodes
from asched.framework.pod_info import PodInfo

_MEBIBYTE = 1024 * 1024
MIN_THRESHOLD_BYTES = 23 * _MEBIBYTE
"""Images that are smaller together than this are not worth a score."""
MAX_THRESHOLD_BYTES = 1000 * _MEBIBYTE
"""Per container: more than this earns no more."""


class ImageLocality(ScoreAllPlugin):
    """Scores by the bytes of the pod's images on the node, each scaled by the share of nodes that
    have it, so that pods do not flock to the first node that pulled an image."""

    name: ClassVar[str] = "ImageLocality"
    api_version: ClassVar[int] = 1
    # How many nodes have an image is part of the node table's layout: when it changes, nothing
    # computed before is used again. Else a row's score depends on that row alone.
    scope: ClassVar[Scope] = Scope.NODE_OBJECT

    def score_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Int64Column:
        shape = pod.shape
        images = (*shape.init_images, *shape.images, *shape.volume_images)
        present: Int64Column | None = None
        for image in images:
            size_bytes, holders = nodes.image_size_bytes(normalized_image_name(image))
            if holders:
                spread = holders / nodes.cluster_size
                scaled = (size_bytes.astype(np.float64) * spread).astype(np.int64)
                present = scaled if present is None else present + scaled
        if present is None:
            return np.zeros(nodes.size, np.int64)
        # Images mounted as volumes add to the sum but do not raise the ceiling.
        ceiling = MAX_THRESHOLD_BYTES * (len(shape.init_images) + len(shape.images))
        worth = np.clip(present, MIN_THRESHOLD_BYTES, ceiling) - MIN_THRESHOLD_BYTES
        scores: Int64Column = worth * MAX_NODE_SCORE // (ceiling - MIN_THRESHOLD_BYTES)
        return scores


def normalized_image_name(image: str) -> str:
    """The name as the container runtime lists it: with the tag ``latest`` where none is given."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
