"""What sees to the volumes of pods that sessions place.

A session has plugins of its own kind, which know nothing of claims that wait for their consumer. The
built-in VolumeBinding sets volumes aside for such pods, and has them bound before the pod is, just as in
a profile that schedules pod by pod.
"""

from __future__ import annotations

from typing import Final

from asched.framework.interface import ExtensionPoint
from asched.framework.profile import PluginWeight, ProfileSpec

VOLUME_BINDING: Final = "VolumeBinding"


def binding_spec(scheduler_name: str) -> ProfileSpec:
    """The profile under which a pod of that scheduler is bound."""
    volumes, points = (PluginWeight(VOLUME_BINDING),), ExtensionPoint
    return ProfileSpec(
        scheduler_name,
        {
            points.QUEUE_SORT.field: (PluginWeight("PrioritySort"),),
            points.PRE_FILTER.field: volumes,
            points.FILTER.field: volumes,
            points.RESERVE.field: volumes,
            points.PRE_BIND.field: volumes,
            points.BIND.field: (PluginWeight("DefaultBinder"),),
        },
    )
