"""Image sizes that nodes report differently.

kube-scheduler's cache keeps one size for each image: that of the node which reached it first. In
its process this is a matter of chance; asched takes the first node of its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import NamedTuple

import msgspec

from asched.framework.pod_info import PodInfo
from asched.model.node import ContainerImage, Node
from asched.model.pod import Pod
from asched.plugins.image_locality import normalized_image_name
from asched.state.cluster import ClusterState

_MOST_COMBINATIONS = 64


class OtherSizes(NamedTuple):
    """Nodes as if all agreed with the report of certain ones."""

    nodes: tuple[Node, ...]
    text: str


def other_sizes(state: ClusterState, pod: Pod) -> Iterator[OtherSizes]:
    """Each way in which the sizes of the pod's images could be settled; those of images that all
    nodes report alike are settled already."""
    shape = PodInfo(pod).shape
    images = (*shape.init_images, *shape.images, *shape.volume_images)
    names = sorted({normalized_image_name(image) for image in images})
    reports = {name: _reports(state, name) for name in names}
    disputed = {name: found for name, found in reports.items() if len(found) > 1}
    if not disputed:
        return
    for sizes in islice(product(*disputed.values()), _MOST_COMBINATIONS):
        settled = dict(zip(disputed, sizes, strict=True))
        nodes = tuple(
            changed
            for node in state.objects(Node).values()
            if (changed := _with_sizes(node, settled)) is not node
        )
        text = ", ".join(
            f"{name} counts {size} bytes, as {disputed[name][size]} reports"
            for name, size in settled.items()
        )
        yield OtherSizes(nodes, f"agrees where {text}")


def _reports(state: ClusterState, name: str) -> dict[int, str]:
    """Each size of the image that is reported, and the first node that reports it."""
    found: dict[int, str] = {}
    for node in state.objects(Node).values():
        for image in node.status.images:
            if name in image.names:
                found.setdefault(image.size_bytes, node.name)
    return found


def _with_sizes(node: Node, sizes: dict[str, int]) -> Node:
    replace = msgspec.structs.replace
    images = tuple(_settled(image, sizes) for image in node.status.images)
    if images == node.status.images:
        return node
    return replace(node, status=replace(node.status, images=images))


def _settled(image: ContainerImage, sizes: dict[str, int]) -> ContainerImage:
    for name in image.names:
        size = sizes.get(name)
        if size is not None and size != image.size_bytes:
            return msgspec.structs.replace(image, size_bytes=size)
    return image
