"""ImageLocality: prefers nodes that already have the pod's images."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import Scope, ScoreAllPlugin
from asched.framework.nodes import MAX_NODE_SCORE, Int64Column, Nodes
from asched.framework.pod_info import PodInfo

_MEBIBYTE = 1024 * 1024
MIN_THRESHOLD_BYTES = 23 * _MEBIBYTE
"""A smaller total size scores 0."""
MAX_THRESHOLD_BYTES = 1000 * _MEBIBYTE
"""Per container: the total size with the maximum score."""


class ImageLocality(ScoreAllPlugin):
    """Scores by the size of the pod's images on the node.

    Each image is scaled by the share of nodes that have it, so that pods do not all go to the first
    node that pulled an image.
    """

    name: ClassVar[str] = "ImageLocality"
    api_version: ClassVar[int] = 1
    # The number of nodes with an image is part of the table's layout, and a changed layout
    # invalidates all scores. Otherwise a score depends on its row only.
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
        # Image volumes add to the sum but not to the ceiling.
        ceiling = MAX_THRESHOLD_BYTES * (len(shape.init_images) + len(shape.images))
        clipped = np.clip(present, MIN_THRESHOLD_BYTES, ceiling) - MIN_THRESHOLD_BYTES
        scores: Int64Column = clipped * MAX_NODE_SCORE // (ceiling - MIN_THRESHOLD_BYTES)
        return scores


def normalized_image_name(image: str) -> str:
    """The image name with a tag; the default is ``latest``."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
