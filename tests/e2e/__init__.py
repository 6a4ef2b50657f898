"""The scenarios of Kubernetes' own scheduling suite (sig-scheduling), on the embedded server."""
