"""The pods/resize subresource: what a running pod's containers may use changes in place.

Source: ``registry/core/pod`` of Kubernetes (``podResizeStrategy``): of all that an update says only the
resources of containers are taken. What a kubelet makes of them, the pod's status tells.
"""

from __future__ import annotations

from asched.apiserver.defaults import Object


def resized(spec: Object, asked: Object) -> Object:
    """``spec`` with the resources that ``asked`` gives to its containers."""
    changed = dict(spec)
    for field in ("containers", "initContainers"):
        given = {each.get("name"): each for each in asked.get(field) or ()}
        if field in spec:
            changed[field] = [_with_resources(each, given) for each in spec[field]]
    return changed


def _with_resources(container: Object, given: dict[str | None, Object]) -> Object:
    asked = given.get(container.get("name"))
    if asked is None:
        return container
    return {**container, "resources": asked.get("resources") or {}}
