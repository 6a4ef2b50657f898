"""Gangs in the simulator: whole groups, pod by pod, and kube-batch sessions."""
