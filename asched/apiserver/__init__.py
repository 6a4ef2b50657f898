"""An embedded Kubernetes cluster: kube-apiserver semantics in memory, optionally over HTTP."""
