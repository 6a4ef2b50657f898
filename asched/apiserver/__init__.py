"""An embedded Kubernetes cluster: the API server's semantics in memory, over HTTP if wanted."""

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.faults import Fault, FaultKind, Faults
from asched.apiserver.http import ApiServer, admin_and_scheduler_tokens
from asched.apiserver.kubelet import (
    RUN_SECONDS,
    Kubelets,
    KubeletTimings,
    simulated_node,
    simulated_nodes,
)
from asched.apiserver.serve import ServeOptions, serve_forever

__all__ = [
    "RUN_SECONDS",
    "StatusError",
    "ApiServer",
    "EmbeddedCluster",
    "Fault",
    "FaultKind",
    "Faults",
    "KubeletTimings",
    "Kubelets",
    "ServeOptions",
    "serve_forever",
    "simulated_node",
    "simulated_nodes",
    "admin_and_scheduler_tokens",
]
