"""What nothing reads is not decoded, so it is in no record."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

import asched
import asched.model
from asched.model.pod import ContainerPort, Pod
from asched.model.resources import Resource, decode

ROOT = Path(asched.__file__).parent
NOT_READ_YET = {
    # Written, never decoded.
    "ContainerExtendedResourceRequest.container_name",
    # Shown by no command yet.
    "WorkloadReference.template_name",
}


def fields() -> Iterator[str]:
    for module in pkgutil.iter_modules(asched.model.__path__, "asched.model."):
        if module.name.endswith("resource_claims"):  # as above
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            if not isinstance(kind, type) or kind.__module__ != module.name:
                continue
            if issubclass(kind, msgspec.Struct):
                yield from (f"{kind.__name__}.{name}" for name in kind.__struct_fields__)


def test_every_decoded_field_is_read() -> None:
    read: set[str] = set()
    for path in ROOT.rglob("*.py"):
        if not path.is_relative_to(ROOT / "apiserver"):
            read |= set(re.findall(r"\.([a-z_0-9]+)\b", path.read_text()))
    assert {name for name in fields() if name.partition(".")[2] not in read} <= NOT_READ_YET


def test_only_host_ports_are_decoded() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081, "protocol": "UDP"}]
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "containers": [{"name": "c", "ports": ports}],
            "initContainers": [{"name": "i", "ports": ports[:1]}],
        },
    }
    pod = decode(Resource.PODS, msgspec.json.encode(raw))
    assert isinstance(pod, Pod)
    assert pod.spec.containers[0].ports == (ContainerPort(host_port=8081, protocol="UDP"),)
    assert pod.spec.init_containers[0].ports == ()
