"""NodeResourcesFit and NodeResourcesBalancedAllocation: filter and score nodes by their
resources."""

from asched.plugins.node_resources.balanced_allocation import NodeResourcesBalancedAllocation
from asched.plugins.node_resources.fit import NodeResourcesFit

__all__ = ["NodeResourcesBalancedAllocation", "NodeResourcesFit"]
