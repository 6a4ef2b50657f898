"""An embedded Kubernetes cluster: the API server's semantics in memory, over HTTP if wanted."""

from asched.sim.cluster import Cluster
from asched.sim.errors import ApiError
from asched.sim.faults import Fault, FaultKind, Faults
from asched.sim.http import ApiServer

__all__ = ["ApiError", "ApiServer", "Cluster", "Fault", "FaultKind", "Faults"]
