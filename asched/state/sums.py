"""Sums over pods that stay within 64 bits.

A column holds the exact sum, cut off at what 64 bits hold. It moves with each pod that comes or
goes; only a sum that is or was cut off has to be added up afresh.
"""

from __future__ import annotations

from collections.abc import Iterable

from asched.framework.nodes import Int64Column
from asched.framework.pod_info import PodInfo
from asched.model.quantity import MAX_INT64, saturated


def shift(column: Int64Column, row: int, difference: int) -> bool:
    """Add to one row. False, and nothing is done, where the sum is or was cut off."""
    held = column.item(row)
    total = held + difference
    if -MAX_INT64 < held < MAX_INT64 and -MAX_INT64 < total < MAX_INT64:
        column[row] = total
        return True
    return False


def requests_of(pods: Iterable[PodInfo], resource: str) -> int:
    """What the pods request of a resource together."""
    return saturated(sum(pod.shape.requests.get(resource, 0) for pod in pods))


def scoring_cpu_of(pods: Iterable[PodInfo]) -> int:
    """The pods' cpu with the defaults that scoring assumes, in thousandths."""
    return saturated(sum(pod.shape.scoring_cpu_milli for pod in pods))


def scoring_memory_of(pods: Iterable[PodInfo]) -> int:
    """The pods' memory with the defaults that scoring assumes, in bytes."""
    return saturated(sum(pod.shape.scoring_memory_bytes for pod in pods))
