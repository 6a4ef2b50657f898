"""CustomResourceDefinitions: creating one makes its resource served, deleting it ends that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asched.sim.resources import ResourceType

if TYPE_CHECKING:
    from asched.sim.api import ObjectApi

Object = dict[str, Any]


def resources_of(definition: Object) -> list[ResourceType]:
    """The resource in each version that the definition serves."""
    spec = definition["spec"]
    names, group = spec["names"], spec["group"]
    return [
        ResourceType(
            group,
            version["name"],
            names["plural"],
            names["kind"],
            spec.get("scope") == "Namespaced",
            tuple(names.get("shortNames") or ()),
            tuple(names.get("categories") or ()),
            singular=names.get("singular") or names["kind"].lower(),
            status="status" in (version.get("subresources") or {}),
            generation=True,
            unconditional_update=False,
            custom=True,
            list_kind=names.get("listKind") or f"{names['kind']}List",
        )
        for version in spec.get("versions") or ()
        if version.get("served")
    ]


def establish(api: ObjectApi, definition: Object) -> None:
    """Serve the new resource and say so in the definition's conditions.

    The conditions are written as a later revision, as the API server's controllers do it.
    """
    for resource in resources_of(definition):
        api.registry.add(resource)
    definitions = api.registry.named("customresourcedefinitions")
    now = api.now_text()
    accepted = definition["spec"]["names"]
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition("Established", "InitialNamesAccepted", "the initial names have been accepted",
                   now),
    ]  # fmt: skip

    def with_conditions(current: Object) -> Object:
        status = {**current["status"], "acceptedNames": accepted, "conditions": conditions}
        return {**current, "status": status}

    name = definition["metadata"]["name"]
    api.update(definitions, "", name, with_conditions, subresource="status")


def _condition(kind: str, reason: str, message: str, now: str) -> Object:
    return {
        "type": kind,
        "status": "True",
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def withdraw(api: ObjectApi, definition: Object) -> None:
    """Delete all objects of the resource and stop serving it."""
    for resource in resources_of(definition):
        storage = api.storage(resource)
        for stored in storage.ordered():
            storage.remove(stored.key)
        api.registry.remove(resource)
