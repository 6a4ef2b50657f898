"""The feature gates that decisions depend on.

A gate has kube-scheduler's meaning. Its default is that of kube-scheduler 1.36. Settings and
validation are in :mod:`asched.config.feature_gates`.
"""

from __future__ import annotations

import msgspec

from asched.model.pod import Pod


class FeatureGates(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The values of one configuration, recorded with its profiles. A plugin reads them from
    ``Handle.feature_gates``. Each field is a gate in snake case."""

    gang_scheduling: bool = False
    """The plugin GangScheduling is among the default plugins."""
    in_place_pod_level_resources_vertical_scaling: bool = True
    """Pod-level resources in a pod's status count."""
    match_label_keys_in_pod_topology_spread: bool = True
    """``matchLabelKeys`` of topology spread constraints counts."""
    node_declared_features: bool = True
    """The plugin NodeDeclaredFeatures is among the default plugins."""
    nominated_node_name_for_expectation: bool = True
    """A pod gets ``status.nominatedNodeName`` first if its binding has to wait."""
    pod_level_resources: bool = True
    """``spec.resources`` of a pod counts."""
    scheduler_pop_from_backoff_q: bool = True
    """While no pod is active, a pod that backs off after a rejection is scheduled early."""

    # For the plugin DynamicResources.
    dra_admin_access: bool = True
    dra_consumable_capacity: bool = True
    dra_device_binding_conditions: bool = True
    dra_device_taint_rules: bool = False
    dra_device_taints: bool = True
    dra_extended_resource: bool = True
    dra_partitionable_devices: bool = True
    dra_prioritized_list: bool = True
    dra_resource_claim_device_status: bool = True
    dra_scheduler_filter_timeout: bool = True


DEFAULT_FEATURE_GATES = FeatureGates()


def kept_fields(gates: FeatureGates) -> tuple[bool, bool]:
    """Whether pods keep their pod-level resources in the spec, and those in the status."""
    in_spec = gates.pod_level_resources
    return in_spec, in_spec and gates.in_place_pod_level_resources_vertical_scaling


def without_gated_fields(pod: Pod, gates: FeatureGates) -> Pod:
    """The pod without the fields of gates that are off. Nothing that reads the pod has to know the
    gates, because the fields are neither recorded nor in the state."""
    replace, status = msgspec.structs.replace, pod.status
    if pod.spec.resources is None and status.resources is None and not status.allocated_resources:
        return pod
    in_spec, in_status = kept_fields(gates)
    if not in_spec and pod.spec.resources is not None:
        pod = replace(pod, spec=replace(pod.spec, resources=None))
    if not in_status and (status.resources is not None or status.allocated_resources is not None):
        pod = replace(pod, status=replace(status, resources=None, allocated_resources=None))
    return pod
