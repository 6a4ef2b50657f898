"""Dynamic Resource Allocation: which devices a pod's claims get on a node.

The algorithm is the structured allocator (``incubating``) of kube-scheduler 1.36.
"""

from asched.dra.allocator import (
    Allocated,
    AllocationError,
    AllocationRequest,
    Allocator,
    NotAllocated,
)
from asched.dra.devices import NodeView, PooledDevice, PoolID
from asched.dra.inventory import Inventory
from asched.dra.selectors import CompiledSelector, SelectorCompiler, SelectorError

__all__ = [
    "Allocated",
    "AllocationError",
    "AllocationRequest",
    "Allocator",
    "CompiledSelector",
    "Inventory",
    "NodeView",
    "NotAllocated",
    "PoolID",
    "PooledDevice",
    "SelectorCompiler",
    "SelectorError",
]
