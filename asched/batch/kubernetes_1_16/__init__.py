"""Predicates and priorities as of Kubernetes 1.16, which kube-batch was built with."""
