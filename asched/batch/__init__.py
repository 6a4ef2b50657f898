"""Batch sessions: schedules jobs of many pods at a time, as kube-batch does."""
