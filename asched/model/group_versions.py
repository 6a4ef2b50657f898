"""Decoding of PodGroups, CompositePodGroups and Workloads of every version of scheduling.k8s.io.

``v1alpha2`` (Kubernetes 1.36) differs from ``v1alpha3`` and ``v1beta1`` (1.37) in three ways:

- ``disruptionMode`` is a name, ``Pod`` or ``PodGroup``, and later a union, ``single`` or ``all``;
- the reference to the template is ``podGroupTemplateRef.workload``, and later ``workloadRef``;
- the condition is ``PodGroupScheduled``, and later ``PodGroupInitiallyScheduled``.

All forms are accepted in every version, and decoded to that of :mod:`asched.model.groups`. So an
upgrade of the API server changes no known group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from asched.model.groups import (
    CompositeGangPolicy,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositePodGroupTemplate,
    CompositeSchedulingPolicy,
    GangPolicy,
    GroupSpec,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodGroupTemplate,
    SchedulingConstraints,
    SchedulingPolicy,
    Workload,
    WorkloadReference,
    WorkloadSpec,
)
from asched.model.meta import ApiStruct, Int32, Object

SpecT = TypeVar("SpecT", bound=GroupSpec)

SCHEDULED = "PodGroupScheduled"
"""The condition of a PodGroup in ``v1alpha2``, and of all groups in :mod:`asched.model.groups`."""
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
"""The same in later versions."""
COMPOSITE_INITIALLY_SCHEDULED = "CompositePodGroupInitiallyScheduled"

SINGLE, ALL = "Single", "All"
NEVER, PREEMPT_LOWER_PRIORITY = "Never", "PreemptLowerPriority"
_replace = msgspec.structs.replace
_MODE_NAMES = {"": "", "Pod": SINGLE, "PodGroup": ALL}
_PREEMPTION_POLICIES = ("", PREEMPT_LOWER_PRIORITY, NEVER)


def scheduled_condition(kind: str, version: str) -> str:
    """The name of the condition :data:`SCHEDULED` of a group in a version of the API."""
    if kind == CompositePodGroup.__name__:
        return COMPOSITE_INITIALLY_SCHEDULED
    return SCHEDULED if version == "v1alpha2" else INITIALLY_SCHEDULED


def other_scheduled_conditions(kind: str, version: str) -> tuple[str, ...]:
    """Its names in other versions. An upgrade of the API server does not rename it."""
    if kind == CompositePodGroup.__name__:
        return ()
    return (INITIALLY_SCHEDULED if version == "v1alpha2" else SCHEDULED,)


class _Present(ApiStruct):
    """The chosen member of a union, without fields."""


class _DisruptionMode(ApiStruct):
    single: _Present | None = None
    all: _Present | None = None


class _Policy(ApiStruct):
    basic: _Present | None = None
    gang: GangPolicy | None = None


class _CompositePolicy(ApiStruct):
    basic: _Present | None = None
    gang: CompositeGangPolicy | None = None


class _TemplateOfWorkload(ApiStruct):
    workload_name: str = ""
    pod_group_template_name: str = ""


class _TemplateReference(ApiStruct):
    workload: _TemplateOfWorkload | None = None


class _AnySpec(ApiStruct):
    """The fields of :class:`~asched.model.groups.GroupSpec`."""

    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: str | _DisruptionMode = ""
    priority_class_name: str = ""
    priority: Int32 | None = None
    preemption_policy: str = ""


class _GroupClaim(ApiStruct):
    name: str = ""


class _GroupSpec(_AnySpec):
    resource_claims: tuple[_GroupClaim, ...] = ()
    scheduling_policy: _Policy = _Policy()
    pod_group_template_ref: _TemplateReference | None = None
    workload_ref: WorkloadReference | None = None
    parent_composite_pod_group_name: str = ""


class _CompositeSpec(_AnySpec):
    scheduling_policy: _CompositePolicy = _CompositePolicy()
    workload_ref: WorkloadReference | None = None
    parent_composite_pod_group_name: str = ""


class _Template(_AnySpec):
    name: str = ""
    scheduling_policy: _Policy = _Policy()


class _CompositeTemplate(_AnySpec):
    name: str = ""
    scheduling_policy: _CompositePolicy = _CompositePolicy()
    pod_group_templates: tuple[_Template, ...] = ()
    composite_pod_group_templates: tuple[_CompositeTemplate, ...] = ()


class _WorkloadSpec(ApiStruct):
    pod_group_templates: tuple[_Template, ...] = ()
    composite_pod_group_templates: tuple[_CompositeTemplate, ...] = ()


class ServedGroup(Object):
    """Base of the forms that API servers send."""

    def internal(self) -> Object:
        """The same object in the form of :mod:`asched.model.groups`."""
        raise NotImplementedError


class ServedPodGroup(ServedGroup):
    spec: _GroupSpec = _GroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    def internal(self) -> PodGroup:
        spec = self.spec
        decoded = _common(spec, PodGroupSpec(scheduling_policy=_policy(spec.scheduling_policy)))
        return PodGroup(
            metadata=self.metadata,
            spec=_replace(
                decoded,
                workload_ref=spec.workload_ref or _template_of(spec.pod_group_template_ref),
                parent_composite_pod_group_name=spec.parent_composite_pod_group_name,
                unsupported=decoded.unsupported or _bad_claims(spec.resource_claims),
            ),
            status=_status(self.status, INITIALLY_SCHEDULED),
        )


class ServedCompositePodGroup(ServedGroup):
    spec: _CompositeSpec = _CompositeSpec()
    status: PodGroupStatus = PodGroupStatus()

    def internal(self) -> CompositePodGroup:
        spec = self.spec
        policy = CompositeSchedulingPolicy(gang=spec.scheduling_policy.gang)
        decoded = _common(spec, CompositePodGroupSpec(scheduling_policy=policy))
        return CompositePodGroup(
            metadata=self.metadata,
            spec=_replace(
                decoded,
                workload_ref=spec.workload_ref,
                parent_composite_pod_group_name=spec.parent_composite_pod_group_name,
            ),
            status=_status(self.status, COMPOSITE_INITIALLY_SCHEDULED),
        )


class ServedWorkload(ServedGroup):
    spec: _WorkloadSpec = _WorkloadSpec()

    def internal(self) -> Workload:
        spec = self.spec
        return Workload(
            metadata=self.metadata,
            spec=WorkloadSpec(
                pod_group_templates=_templates(spec.pod_group_templates),
                composite_pod_group_templates=_composites(spec.composite_pod_group_templates),
            ),
        )


# -- parts ----------------------------------------------------------------------------------------


def _common(
    served: _GroupSpec | _CompositeSpec | _Template | _CompositeTemplate, decoded: SpecT
) -> SpecT:
    """``decoded`` with the fields that all specifications have."""
    mode, bad_mode = _mode(served.disruption_mode)
    policy = served.scheduling_policy
    one_policy = (policy.basic is None) is not (policy.gang is None)
    return _replace(
        decoded,
        scheduling_constraints=served.scheduling_constraints,
        disruption_mode=mode,
        priority_class_name=served.priority_class_name,
        priority=served.priority,
        preemption_policy=served.preemption_policy,
        unsupported=(
            (
                ""
                if one_policy
                else "spec.schedulingPolicy: needs one of the known members basic and gang"
            )
            or bad_mode
            or _bad_preemption_policy(served.preemption_policy)
        ),
    )


def _policy(served: _Policy) -> SchedulingPolicy:
    return SchedulingPolicy(gang=served.gang)


def _mode(served: str | _DisruptionMode) -> tuple[str, str]:
    """The name of the mode, and what is wrong with it."""
    if isinstance(served, str):
        known = _MODE_NAMES.get(served)
        if known is not None:
            return known, ""
        return "", f'spec.disruptionMode: unsupported value "{served}", known: "Pod", "PodGroup"'
    if (served.single is None) is (served.all is None):
        return "", "spec.disruptionMode: needs one of the known members single and all"
    return (ALL if served.all is not None else SINGLE), ""


def _bad_preemption_policy(policy: str) -> str:
    if policy in _PREEMPTION_POLICIES:
        return ""
    known = f'"{PREEMPT_LOWER_PRIORITY}", "{NEVER}"'
    return f'spec.preemptionPolicy: unsupported value "{policy}", known: {known}'


def _bad_claims(claims: Sequence[_GroupClaim]) -> str:
    """What is wrong with claims that all pods of a group share.

    They are reserved for the group, and a controller creates them for the group. Without that each
    pod would wait for claims of its own.
    """
    if not claims:
        return ""
    names = ", ".join(claim.name for claim in claims)
    return f"spec.resourceClaims: claims of a group are not supported ({names}); use claims of pods"


def _template_of(reference: _TemplateReference | None) -> WorkloadReference | None:
    if reference is None or reference.workload is None:
        return None
    found = reference.workload
    return WorkloadReference(
        workload_name=found.workload_name, template_name=found.pod_group_template_name
    )


def _templates(served: Sequence[_Template]) -> tuple[PodGroupTemplate, ...]:
    return tuple(
        _common(t, PodGroupTemplate(name=t.name, scheduling_policy=_policy(t.scheduling_policy)))
        for t in served
    )


def _composites(served: Sequence[_CompositeTemplate]) -> tuple[CompositePodGroupTemplate, ...]:
    return tuple(
        _common(
            template,
            CompositePodGroupTemplate(
                name=template.name,
                scheduling_policy=CompositeSchedulingPolicy(gang=template.scheduling_policy.gang),
                pod_group_templates=_templates(template.pod_group_templates),
                composite_pod_group_templates=_composites(template.composite_pod_group_templates),
            ),
        )
        for template in served
    )


def _status(served: PodGroupStatus, name: str) -> PodGroupStatus:
    """The status with the condition ``name`` under its name here, instead of an older one."""
    if all(condition.type != name for condition in served.conditions):
        return served
    return PodGroupStatus(
        conditions=tuple(
            _replace(condition, type=SCHEDULED) if condition.type == name else condition
            for condition in served.conditions
            if condition.type != SCHEDULED
        )
    )
