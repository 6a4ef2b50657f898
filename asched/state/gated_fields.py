"""Fields of pods that count only with a feature gate."""

from __future__ import annotations

import msgspec

from asched.framework.feature_gates import FeatureGates
from asched.model.pod import Pod


def without_gated_fields(pod: Pod, gates: FeatureGates) -> Pod:
    """The pod without the fields of gates that are off. Nothing that reads the pod has to know the
    gates, because the fields are neither recorded nor in the state."""
    replace, status = msgspec.structs.replace, pod.status
    if not gates.pod_level_resources and pod.spec.resources is not None:
        pod = replace(pod, spec=replace(pod.spec, resources=None))
    in_place = gates.in_place_pod_level_resources_vertical_scaling and gates.pod_level_resources
    if not in_place and (status.resources is not None or status.allocated_resources is not None):
        pod = replace(pod, status=replace(status, resources=None, allocated_resources=None))
    return pod
