"""Dynamic Resource Allocation in the embedded API server: rules of ``resource.k8s.io/v1``, the
controller of ResourceClaims, and simulated drivers."""
