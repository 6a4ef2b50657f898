"""The what-if lab: comparisons in worker processes, and their stored results."""
