"""Shadow mode: what asched would have decided, beside the scheduler that owns the cluster."""
