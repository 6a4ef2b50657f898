"""An embedded Kubernetes cluster: the API server's semantics in memory, over HTTP if wanted."""

from asched.sim.cluster import Cluster
from asched.sim.errors import ApiError
from asched.sim.faults import Fault, FaultKind, Faults
from asched.sim.http import ApiServer, tokens_for_two
from asched.sim.kubelet import RUN_SECONDS, Kubelets, KubeletTimings
from asched.sim.nodes import simulated_node, simulated_nodes
from asched.sim.serve import ServeOptions, serve_forever

__all__ = [
    "RUN_SECONDS",
    "ApiError",
    "ApiServer",
    "Cluster",
    "Fault",
    "FaultKind",
    "Faults",
    "KubeletTimings",
    "Kubelets",
    "ServeOptions",
    "serve_forever",
    "simulated_node",
    "simulated_nodes",
    "tokens_for_two",
]
