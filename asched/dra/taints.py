"""Taints of devices, and the tolerations of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from asched.model.resource_claims import DeviceTaint, DeviceToleration

PREVENTING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Taints with other effects are ignored."""


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a toleration covers a taint. ``tolerationSeconds`` does not matter here."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False


def untolerated(
    taints: Iterable[DeviceTaint], tolerations: Sequence[DeviceToleration]
) -> DeviceTaint | None:
    """The first taint that keeps a request without these tolerations from a device."""
    for taint in taints:
        if taint.effect in PREVENTING_EFFECTS and not any(
            tolerates(toleration, taint) for toleration in tolerations
        ):
            return taint
    return None
