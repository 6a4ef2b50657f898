"""The requests of the special claim, and which container uses which."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from asched.dra.extended import ExtendedResources
from asched.plugins.dynamic_resources.special_claim import special_requests
from tests.plugins.dynamic_resources.objects import a_class, a_pod
from tests.plugins.volume_clusters import api

GPU, NIC = "example.com/gpu", "example.com/nic"
EXTENDED = ExtendedResources(
    [a_class("gpus", extendedResourceName=GPU), a_class("nics", extendedResourceName=NIC)]
)


def container(name: str, *, sidecar: bool = False, **amounts: str) -> dict[str, Any]:
    names = {"gpu": GPU, "nic": NIC, "cpu": "cpu"}
    found: dict[str, Any] = {
        "name": name,
        "resources": {"requests": {names[n]: q for n, q in amounts.items()}},
    }
    return found | ({"restartPolicy": "Always"} if sidecar else {})


def found(
    *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Count by name of the request, and the pairs of container and request."""
    pod = a_pod("p", containers=list(containers), initContainers=list(init))
    requests, mappings = special_requests(pod, [GPU, NIC], EXTENDED)
    counts = {each.name: each.exactly.count for each in requests if each.exactly is not None}
    return counts, [(each.container_name, each.request_name) for each in mappings]


def test_each_container_has_a_request_named_by_its_place() -> None:
    counts, mappings = found(container("a", cpu="1", gpu="2"), container("b", nic="1", gpu="1"))
    assert counts == {
        "container-0-request-1": 2, "container-1-request-0": 1, "container-1-request-1": 1,
    }  # fmt: skip
    assert mappings == [
        ("a", "container-0-request-1"),
        ("b", "container-1-request-0"),
        ("b", "container-1-request-1"),
    ]


def test_init_container_uses_requests_of_later_containers() -> None:
    counts, mappings = found(container("main", gpu="2"), init=(container("init", gpu="2"),))
    assert counts == {"container-1-request-0": 2}
    assert mappings == [("main", "container-1-request-0"), ("init", "container-1-request-0")]


def test_init_container_requests_the_rest() -> None:
    counts, mappings = found(container("main", gpu="2"), init=(container("init", gpu="3"),))
    assert counts == {"container-0-request-0": 1, "container-1-request-0": 2}
    assert mappings == [
        ("main", "container-1-request-0"),
        ("init", "container-1-request-0"),
        ("init", "container-0-request-0"),
    ]


def test_init_containers_share_the_largest_own_request() -> None:
    init = (container("i0", gpu="2"), container("i1", gpu="4"), container("i2", gpu="4"))
    counts, mappings = found(container("main"), init=init)
    assert counts == {"container-1-request-0": 4}
    assert mappings == [(name, "container-1-request-0") for name in ("i0", "i1", "i2")]


def test_earlier_sidecar_is_not_reused() -> None:
    init = (container("side", sidecar=True, gpu="1"), container("init", gpu="1"))
    counts, mappings = found(container("main"), init=init)
    assert counts == {"container-0-request-0": 1, "container-1-request-0": 1}
    assert mappings == [("side", "container-0-request-0"), ("init", "container-1-request-0")]


def test_requests_are_sorted_as_text() -> None:
    counts, _ = found(*(container(f"c{number}", gpu="1") for number in range(11)))
    assert [*counts][:3] == [
        "container-0-request-0", "container-1-request-0", "container-10-request-0",
    ]  # fmt: skip


# -- which class provides a resource --------------------------------------------------------------

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def dated(name: str, created: str, resource: str | None = GPU) -> Any:
    spec = {} if resource is None else {"extendedResourceName": resource}
    made = api("DeviceClass", name, spec=spec)
    metadata = msgspec.structs.replace(
        made.metadata, creation_timestamp=datetime.fromisoformat(created)
    )
    return msgspec.structs.replace(made, metadata=metadata)


@pytest.mark.parametrize(
    ("classes", "provider", "implicit"),
    [
        ([dated("a", OLD), dated("b", NEW)], "b", {"a": "a", "b": "b"}),
        ([dated("a", NEW), dated("b", OLD)], "a", {"a": "a", "b": None}),
        ([dated("b", OLD), dated("a", OLD)], "a", {"a": "a", "b": None}),
        ([dated("a", OLD, None)], None, {"a": "a"}),
    ],
)
def test_newest_class_provides_the_resource(
    classes: list[Any], provider: str | None, implicit: dict[str, str | None]
) -> None:
    extended = ExtendedResources(classes)
    assert extended.class_of(GPU) == provider
    assert {name: extended.class_of(IMPLICIT + name) for name in implicit} == implicit
