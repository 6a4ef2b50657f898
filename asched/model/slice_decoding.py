"""Decoding of ResourceSlices with known devices.

The devices are nearly all of a slice. Equal nodes publish equal devices, and drivers publish them
again after each restart. So a list of devices is decoded and checked only if its bytes are new, and
slices with equal lists share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from asched.model.limits import MAX_CLUSTER_BYTES
from asched.model.meta import ApiStruct, Object
from asched.model.resource_claims import (
    CounterSet,
    Device,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from asched.model.selectors import NodeSelector

KEPT_BYTES: Final = 4 * 1024 * 1024
"""Size of the JSON of the lists that are kept for slices to come."""

SliceBytes = bytes | msgspec.Raw


class _Spec(ApiStruct):
    """:class:`ResourceSliceSpec` with its devices undecoded."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: msgspec.Raw = msgspec.Raw(b"[]")
    shared_counters: tuple[CounterSet, ...] = ()


class _Slice(Object):
    spec: _Spec = _Spec()


_decoder = msgspec.json.Decoder(_Slice)


class SliceDecoder:
    """Decodes slices, and keeps the latest lists of devices by their JSON."""

    def __init__(
        self, decode: Callable[[SliceBytes], ResourceSlice], kept_bytes: int = KEPT_BYTES
    ) -> None:
        """``decode`` decodes and checks a slice with a list that is not kept."""
        self._decode = decode
        self._left_bytes = kept_bytes
        self._lists: dict[bytes, tuple[Device, ...]] = {}

    def __len__(self) -> int:
        """The number of lists that are kept."""
        return len(self._lists)

    def decode(self, raw: SliceBytes) -> ResourceSlice:
        """As the function of the constructor, with its errors."""
        try:
            served = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode(raw)
        spec, key = served.spec, bytes(served.spec.devices)
        devices = self._lists.pop(key, None)
        if devices is None:
            decoded = self._decode(raw)
            self._keep(key, decoded.spec.devices)
            return decoded
        self._lists[key] = devices  # the latest one again
        # What else can be wrong with a slice is not checked here.
        if spec.shared_counters or not served.name or len(raw) > MAX_CLUSTER_BYTES:
            return self._decode(raw)
        return ResourceSlice(
            metadata=served.metadata,
            spec=ResourceSliceSpec(
                driver=spec.driver,
                pool=spec.pool,
                node_name=spec.node_name,
                node_selector=spec.node_selector,
                all_nodes=spec.all_nodes,
                per_device_node_selection=spec.per_device_node_selection,
                devices=devices,
            ),
        )

    def _keep(self, key: bytes, devices: tuple[Device, ...]) -> None:
        self._lists[key] = devices
        self._left_bytes -= len(key)
        while self._left_bytes < 0:
            oldest = next(iter(self._lists))
            del self._lists[oldest]
            self._left_bytes += len(oldest)
