"""Small API objects for the tests of the embedded cluster."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def pod(name: str = "p", namespace: str = "default", **spec: Any) -> Object:
    """A pod with one container that requests 100m of cpu."""
    resources = {"requests": {"cpu": "100m"}}
    containers = [{"name": "c", "image": "registry/x:1", "resources": resources}]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": containers, **spec},
    }


def node(name: str = "n", **labels: str) -> Object:
    return {
        "metadata": {"name": name, "labels": dict(labels)},
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class FakeClock:
    """A manual clock."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
