"""conformance: protects system pods from eviction."""

from __future__ import annotations

from typing import ClassVar

from asched.framework.session_objects import Task
from asched.framework.session_plugins import PreemptablePlugin, ReclaimablePlugin, VictimFilter

SYSTEM_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
SYSTEM_NAMESPACE = "kube-system"


def is_protected(task: Task) -> bool:
    """Whether the pod has a system priority class or is in ``kube-system``."""
    spec = task.info.pod.spec
    return spec.priority_class_name in SYSTEM_CLASSES or task.info.namespace == SYSTEM_NAMESPACE


class Conformance(PreemptablePlugin, ReclaimablePlugin):
    name: ClassVar[str] = "conformance"

    def preemptable(self, preemptor: Task) -> VictimFilter:
        return _Unprotected()

    def reclaimable(self, reclaimer: Task) -> VictimFilter:
        return _Unprotected()


class _Unprotected:
    def allows(self, candidate: Task) -> bool:
        return not is_protected(candidate)

    def take(self, candidate: Task) -> None:
        """Earlier victims do not matter."""
