"""Dynamic Resource Allocation: which devices a pod's claims get on a node.

The algorithm is the structured allocator (``incubating``) of kube-scheduler 1.36.
"""

from asched.dra.allocator import AllocationRequest, Allocator, NodeAnswers, SearchLimits
from asched.dra.devices import NodeView
from asched.dra.inventory import Inventory
from asched.dra.outcomes import Allocated, AllocationError, AllocationFailed, NotAllocated

__all__ = [
    "Allocated",
    "AllocationError",
    "AllocationFailed",
    "AllocationRequest",
    "Allocator",
    "Inventory",
    "NodeAnswers",
    "NodeView",
    "NotAllocated",
    "SearchLimits",
]
