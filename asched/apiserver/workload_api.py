"""What creating and updating Workloads, PodGroups and CompositePodGroups checks and completes.

Sources: the tags in k8s.io/api, v0.36.2 for ``v1alpha2`` and v0.37.0-beta.0 for ``v1alpha3``;
``v1beta1`` has the same. The feature gates of these fields count as enabled. Kubernetes' own text
of some messages is not known (docs/reference/compatibility.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from asched.apiserver.errors import (
    Cause,
    Object,
    duplicate,
    forbidden,
    immutable,
    invalid,
    invalid_value,
    not_supported,
    required,
    too_many,
    undecodable,
)
from asched.apiserver.group_forms import (
    GROUP,
    NEWER_FIELDS,
    OLD_MODES,
    OLD_VERSION,
    specs,
    stored_form,
)
from asched.apiserver.names import label_key_causes, label_name_causes, subdomain_causes
from asched.apiserver.resources import ServedResource
from asched.model.group_versions import (
    NEVER,
    PREEMPT_LOWER_PRIORITY,
    ServedCompositePodGroup,
    ServedGroup,
    ServedPodGroup,
    ServedWorkload,
)

if TYPE_CHECKING:
    from asched.apiserver.api import ObjectApi

POD_GROUPS: Final = f"podgroups.{GROUP}"
COMPOSITES: Final = f"compositepodgroups.{GROUP}"
WORKLOADS: Final = f"workloads.{GROUP}"
_TYPES: dict[str, type[ServedGroup]] = {
    POD_GROUPS: ServedPodGroup,
    COMPOSITES: ServedCompositePodGroup,
    WORKLOADS: ServedWorkload,
}
_HIGHEST_USER_PRIORITY = 1_000_000_000
_MAX_TEMPLATES, _MAX_DEPTH = 8, 4
_IMMUTABLE = (
    "parentCompositePodGroupName",
    "workloadRef",
    "schedulingConstraints",
    "resourceClaims",
    "disruptionMode",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
)


def to_stored(resource: ServedResource, obj: Object) -> Object:
    """The object as it is stored. Raises StatusError 400 for a field of a wrong type, and 422 for
    a name of a mode that does not exist."""
    object_type = _TYPES.get(resource.storage_key)
    if object_type is None:
        return obj
    old = resource.version == OLD_VERSION
    try:
        msgspec.convert(_without_nulls(obj), object_type)
        for path, spec in specs(obj):
            mode = spec.get("disruptionMode")
            if mode is not None and isinstance(mode, str) is not old:
                wanted, got = ("str", "object") if old else ("object", "str")
                text = f"Expected `{wanted}`, got `{got}` - at `$.{path}.disruptionMode`"
                raise msgspec.ValidationError(text)
    except msgspec.ValidationError as error:
        raise undecodable(resource.kind, resource.version, str(error)) from None
    causes = [*_mode_name_causes(obj)] if old else []
    if causes:
        name = obj["metadata"].get("name") or ""
        raise invalid(resource.kind, resource.group, name, causes)
    return stored_form(obj, resource.version)


def _mode_name_causes(obj: Object) -> Iterator[Cause]:
    for path, spec in specs(obj):
        mode = spec.get("disruptionMode")
        if mode is not None and mode not in OLD_MODES:
            yield not_supported(f"{path}.disruptionMode", mode, tuple(OLD_MODES))


def _without_nulls(json_value: Any) -> Any:
    if isinstance(json_value, dict):
        return {k: _without_nulls(v) for k, v in json_value.items() if v is not None}
    if isinstance(json_value, list):
        return [_without_nulls(v) for v in json_value]
    return json_value


# -- admission ------------------------------------------------------------------------------------


def admit_new(api: ObjectApi, resource: ServedResource, obj: Object) -> None:
    """Set the priority of a group from its class. Raises StatusError 403.

    In 1.36 groups have a priority only with a feature gate that is off by default: there it is
    set only if the group names a class.
    """
    if resource.storage_key not in (POD_GROUPS, COMPOSITES):
        return
    spec = obj.setdefault("spec", {})
    name, given = spec.get("priorityClassName") or "", spec.get("priority")
    if resource.version == OLD_VERSION and not name:
        return
    chosen = _priority_class(api, resource, obj, name)
    priority = int(chosen["value"]) if chosen else 0
    if given is not None and given != priority:
        why = (
            f"the integer value of priority ({given}) must not be provided in the spec; priority "
            f"admission controller computed {priority} from the given PriorityClass name"
        )
        raise forbidden(resource.plural, GROUP, obj["metadata"].get("name") or "", why)
    if chosen and not name:
        spec["priorityClassName"] = chosen["metadata"]["name"]
    spec["priority"] = priority
    if resource.version != OLD_VERSION and resource.storage_key == POD_GROUPS:
        policy = (chosen or {}).get("preemptionPolicy") or PREEMPT_LOWER_PRIORITY
        spec.setdefault("preemptionPolicy", policy)


def _priority_class(
    api: ObjectApi, resource: ServedResource, obj: Object, name: str
) -> Object | None:
    """The class of that name, or the global default."""
    classes = f"priorityclasses.{GROUP}"
    if name:
        stored = api.find(classes, "", name)
        if stored is None:
            group = obj["metadata"].get("name") or ""
            why = f"no PriorityClass with name {name} was found"
            raise forbidden(resource.plural, GROUP, group, why)
        return stored.obj
    defaults = (found.obj for found in api.all_of(classes) if found.obj.get("globalDefault"))
    return min(defaults, key=lambda found: int(found["value"]), default=None)


# -- validation -----------------------------------------------------------------------------------


def _pod_group_causes(group: Object) -> list[Cause]:
    spec = group.get("spec") or {}
    causes = [*_spec_causes("spec", spec, "minCount")]
    if spec.get("parentCompositePodGroupName") and not spec.get("workloadRef"):
        causes.append(required("spec.workloadRef", "required with parentCompositePodGroupName"))
    return causes


def _composite_causes(group: Object) -> list[Cause]:
    spec = group.get("spec") or {}
    missing = [] if spec.get("workloadRef") else [required("spec.workloadRef")]
    return [*missing, *_spec_causes("spec", spec, "minGroupCount")]


def _workload_causes(workload: Object) -> list[Cause]:
    spec = workload.get("spec") or {}
    members = ("podGroupTemplates", "compositePodGroupTemplates")
    given: Object = {member: {} for member in members if spec.get(member)}
    causes = [*_union_causes("spec", given, members)]
    causes += _template_list_causes("spec", spec, 1)
    for path, template in specs(workload):
        name = template.get("name") or ""
        named = label_name_causes(f"{path}.name", name) if name else [required(f"{path}.name")]
        composite = path.rpartition(".")[2].startswith("composite")
        minimum = "minGroupCount" if composite else "minCount"
        causes += [*named, *_spec_causes(path, template, minimum)]
    return causes


def _template_list_causes(path: str, holder: Object, depth: int) -> Iterator[Cause]:
    for member in ("podGroupTemplates", "compositePodGroupTemplates"):
        where, templates = f"{path}.{member}", holder.get(member) or []
        if len(templates) > _MAX_TEMPLATES:
            yield too_many(where, len(templates), _MAX_TEMPLATES)
        seen: set[str] = set()
        for index, template in enumerate(templates):
            name = template.get("name") or ""
            if name in seen:
                yield duplicate(f"{where}[{index}]", {"name": name})
            seen.add(name)
            if member != "podGroupTemplates":
                if depth >= _MAX_DEPTH:
                    yield invalid_value(where, "", f"must have at most {_MAX_DEPTH} levels")
                else:
                    yield from _template_list_causes(f"{where}[{index}]", template, depth + 1)


def _spec_causes(path: str, spec: Object, minimum: str) -> Iterator[Cause]:
    policy = spec.get("schedulingPolicy") or {}
    yield from _union_causes(f"{path}.schedulingPolicy", policy, ("basic", "gang"))
    if policy.get("gang") is not None:
        count = policy["gang"].get(minimum) or 0
        field = f"{path}.schedulingPolicy.gang.{minimum}"
        if count == 0:
            yield required(field)
        elif count < 0:
            yield invalid_value(field, count, "must be greater than or equal to 1")
    yield from _mode_and_reference_causes(path, spec)


def _mode_and_reference_causes(path: str, spec: Object) -> Iterator[Cause]:
    mode = spec.get("disruptionMode")
    if mode is not None:
        yield from _union_causes(f"{path}.disruptionMode", mode, ("single", "all"))
    topology = (spec.get("schedulingConstraints") or {}).get("topology") or []
    where = f"{path}.schedulingConstraints.topology"
    if len(topology) > 1:
        yield too_many(where, len(topology), 1)
    for index, constraint in enumerate(topology):
        key, field = constraint.get("key") or "", f"{where}[{index}].key"
        yield from label_key_causes(field, key) if key else [required(field)]
    for field in ("parentCompositePodGroupName", "priorityClassName"):
        if spec.get(field):
            yield from subdomain_causes(f"{path}.{field}", spec[field])
    reference = spec.get("workloadRef")
    if reference is not None:
        for field in ("workloadName", "templateName"):
            if not reference.get(field):
                yield required(f"{path}.workloadRef.{field}")
    if (spec.get("priority") or 0) > _HIGHEST_USER_PRIORITY:
        rule = f"must be less than or equal to {_HIGHEST_USER_PRIORITY}"
        yield invalid_value(f"{path}.priority", spec["priority"], rule)
    wanted = spec.get("preemptionPolicy")
    if wanted is not None and wanted not in (NEVER, PREEMPT_LOWER_PRIORITY):
        known = (NEVER, PREEMPT_LOWER_PRIORITY)
        yield not_supported(f"{path}.preemptionPolicy", wanted, known)


def _union_causes(path: str, union: Object, members: tuple[str, ...]) -> Iterator[Cause]:
    """Exactly one of the members is set."""
    given = [f"`{member}`" for member in members if union.get(member) is not None]
    listed = ", ".join(f"`{member}`" for member in members)
    if not given:
        yield invalid_value(path, "", f"must specify one of: {listed}")
    elif len(given) > 1:
        shown = "{" + ", ".join(given) + "}"
        yield invalid_value(path, shown, f"must specify exactly one of: {listed}")


CHECKS: Final[dict[str, Callable[[Object], list[Cause]]]] = {
    POD_GROUPS: _pod_group_causes,
    COMPOSITES: _composite_causes,
    WORKLOADS: _workload_causes,
}
"""The validation of new objects."""


def check_update(resource: ServedResource, new: Object, old: Object) -> None:
    """Raises StatusError 422 if an update changes an immutable field.

    ``minCount`` may change from 1.37 on, also that of a template.
    """
    if resource.storage_key not in _TYPES:
        return
    before, after = dict(specs(old)), dict(specs(new))
    causes: list[Cause] = []
    if before.keys() != after.keys():
        causes.append(immutable("spec", "templates cannot be added or removed"))
    for path, spec in after.items():
        causes += _changes(resource.version, path, spec, before.get(path, spec))
    if causes:
        raise invalid(resource.kind, resource.group, new["metadata"]["name"], causes)


def check_status(resource: ServedResource, new: Object) -> None:
    """Raises StatusError 422 for a condition without a required field (``ValidateConditions``)."""
    if resource.storage_key not in (POD_GROUPS, COMPOSITES):
        return
    fields = ("type", "status", "lastTransitionTime", "reason")
    conditions = (new.get("status") or {}).get("conditions") or []
    causes = [
        required(f"status.conditions[{index}].{field}")
        for index, condition in enumerate(conditions)
        for field in fields
        if not condition.get(field)
    ]
    if causes:
        raise invalid(resource.kind, resource.group, new["metadata"]["name"], causes)


def _changes(version: str, path: str, new: Object, old: Object) -> Iterator[Cause]:
    for field in _IMMUTABLE:
        # An update in the old version drops fields that it does not have.
        dropped = version == OLD_VERSION and field in NEWER_FIELDS and field not in new
        if new.get(field) != old.get(field) and not dropped:
            yield immutable(f"{path}.{field}", new.get(field))
    policy, before = new.get("schedulingPolicy") or {}, old.get("schedulingPolicy") or {}
    fixed = version == OLD_VERSION or policy.keys() != before.keys()
    if fixed and policy != before:
        yield immutable(f"{path}.schedulingPolicy", policy)
