"""An embedded Kubernetes cluster: kube-apiserver semantics in memory, optionally over HTTP."""

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.faults import Fault, FaultKind, Faults
from asched.apiserver.http import (
    ApiServer,
    ServeOptions,
    admin_and_scheduler_tokens,
    serve_forever,
)
from asched.apiserver.kubelet import (
    RUN_SECONDS,
    Kubelets,
    KubeletTimings,
    simulated_node,
    simulated_nodes,
)

__all__ = [
    "ApiServer",
    "EmbeddedCluster",
    "Fault",
    "FaultKind",
    "Faults",
    "KubeletTimings",
    "Kubelets",
    "RUN_SECONDS",
    "ServeOptions",
    "StatusError",
    "admin_and_scheduler_tokens",
    "serve_forever",
    "simulated_node",
    "simulated_nodes",
]
