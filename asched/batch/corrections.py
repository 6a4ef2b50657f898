"""The deviations from kube-batch. ``docs/reference/batch-corrections.md`` describes each by its
name, and ``tests/batch/test_corrections.py`` shows it.

Compatibility mode makes none of them, the default mode makes all.
"""

from __future__ import annotations

from enum import Enum, auto

from asched.framework.sessions import Compatibility


class Correction(Enum):
    ROLL_BACK_GANGS = auto()
    DROP_INVALID_JOBS = auto()
    EXACT_FIT = auto()
    COUNT_ALL_REQUESTS = auto()
    COUNT_FOREIGN_PODS = auto()
    LEAVE_OTHERS_ALONE = auto()
    READY_NODES_ONLY = auto()
    SPARE_GANGS = auto()
    ROOM_BEFORE_VICTIMS = auto()
    IDLE_BEFORE_WAITING = auto()
    RECLAIM_FOR_GANGS = auto()
    HONOUR_CAPABILITY = auto()
    CONSENT_OF_ALL_TIERS = auto()
    DESERVED_BY_RESOURCE = auto()
    SMALLER_SHARE_RECLAIMS = auto()
    PREEMPT_UPWARDS = auto()
    REAL_PLACES = auto()
    NODES_IN_MESSAGES = auto()
    ORDERED_QUEUES = auto()


def corrections_of(compatibility: Compatibility) -> frozenset[Correction]:
    return frozenset(() if compatibility is Compatibility.KUBE_BATCH else Correction)
