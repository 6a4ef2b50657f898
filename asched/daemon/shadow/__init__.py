"""Shadow mode: compares asched's decisions with those of the scheduler that owns the cluster."""
