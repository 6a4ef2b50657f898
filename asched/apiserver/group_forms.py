"""The forms of PodGroups, CompositePodGroups and Workloads in the versions of scheduling.k8s.io.

They are stored in the form of ``v1alpha3``. ``v1beta1`` has the same fields; ``v1alpha2`` of 1.36
has another ``disruptionMode`` and another reference to the template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from asched.apiserver.errors import Object

GROUP: Final = "scheduling.k8s.io"
STORED_VERSION: Final = "v1alpha3"
OLD_VERSION: Final = "v1alpha2"
OLD_MODES: Final = {"Pod": "single", "PodGroup": "all"}
"""``disruptionMode`` of ``v1alpha2``, with the members of the union in later versions."""
NEWER_FIELDS: Final = ("parentCompositePodGroupName", "preemptionPolicy")
"""Fields that ``v1alpha2`` does not have."""


class KubernetesVersion(StrEnum):
    """The Kubernetes version with the served Workloads and PodGroups."""

    V1_36 = "1.36"
    V1_37 = "1.37"
    BOTH = "both"
    """As by several API servers in the middle of an upgrade."""


Convert = Callable[[Object], Object]


def stored_form(obj: Object, version: str) -> Object:
    """An object in the form of ``version`` as it is stored."""
    if version == OLD_VERSION:
        obj = _with_each_spec(obj, _newer)
    return {**obj, "apiVersion": f"{GROUP}/{STORED_VERSION}"}


def view_of(version: str) -> Convert | None:
    """The conversion of a stored object to ``version``; None for the stored form."""
    if version == STORED_VERSION:
        return None

    def view(stored: Object) -> Object:
        if version == OLD_VERSION:
            stored = _with_each_spec(stored, _older)
        return {**stored, "apiVersion": f"{GROUP}/{version}"}

    return view


def specs(obj: Object) -> Iterator[tuple[str, Object]]:
    """The specification of a group, or the templates of a Workload at all depths, with the path."""
    spec = obj.get("spec") or {}
    if obj.get("kind") == "Workload":
        yield from _templates(spec, "spec")
    else:
        yield "spec", spec


def _templates(holder: Object, path: str) -> Iterator[tuple[str, Object]]:
    for index, template in enumerate(holder.get("podGroupTemplates") or ()):
        yield f"{path}.podGroupTemplates[{index}]", template
    for index, template in enumerate(holder.get("compositePodGroupTemplates") or ()):
        inner = f"{path}.compositePodGroupTemplates[{index}]"
        yield inner, template
        yield from _templates(template, inner)


def _with_each_spec(obj: Object, change: Convert) -> Object:
    """The object with changed specifications. ``v1alpha2`` has no composite templates."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return obj
    if obj.get("kind") != "Workload":
        changed = change(spec)
        if change is _older:
            changed.setdefault("podGroupTemplateRef", None)
        return {**obj, "spec": changed}
    templates = [change(template) for template in spec.get("podGroupTemplates") or ()]
    return {**obj, "spec": {**spec, "podGroupTemplates": templates}}


def _newer(spec: Object) -> Object:
    spec = dict(spec)
    mode = spec.get("disruptionMode")
    if isinstance(mode, str):
        spec["disruptionMode"] = {OLD_MODES.get(mode, mode): {}}
    reference = (spec.pop("podGroupTemplateRef", None) or {}).get("workload")
    if reference is not None:
        name, template = reference.get("workloadName"), reference.get("podGroupTemplateName")
        spec["workloadRef"] = {"workloadName": name, "templateName": template}
    return spec


def _older(spec: Object) -> Object:
    spec = {key: value for key, value in spec.items() if key not in NEWER_FIELDS}
    mode = spec.get("disruptionMode") or {}
    for name, member in OLD_MODES.items():
        if mode.get(member) is not None:
            spec["disruptionMode"] = name
    reference = spec.pop("workloadRef", None)
    if reference is not None:
        name, template = reference.get("workloadName"), reference.get("templateName")
        workload = {"workloadName": name, "podGroupTemplateName": template}
        spec = {"podGroupTemplateRef": {"workload": workload}, **spec}
    return spec


def default_group(group: Object) -> None:
    """What a PodGroup or CompositePodGroup always has, in its stored form."""
    group.setdefault("status", {})
    spec = group.setdefault("spec", {})
    if spec.get("disruptionMode") is None:
        spec["disruptionMode"] = {"single": {}}
