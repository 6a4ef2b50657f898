"""Which event brought pods into which queue, counted for those who watch the queue.

It is no part of the state: no decision reads it, and a checkpoint does not keep it.
"""

from __future__ import annotations

from collections import Counter

ACTIVE = "active"
BACKOFF = "backoff"
UNSCHEDULABLE = "unschedulable"
GATED = "gated"

# The events that are none of the cluster's have kube-scheduler's names.
POD_ADD = "UnscheduledPodAdd"
ATTEMPT_FAILURE = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
FORCE_ACTIVATE = "ForceActivate"
TIMEOUT = "UnschedulableTimeout"
RECONFIGURED = "ProfilesLoaded"
"""Ours: new profiles have every waiting pod sorted in afresh."""

Arrivals = Counter[tuple[str, str]]
"""How many pods came, by queue and event."""
