"""conformance: what the cluster itself needs is not evicted."""

from __future__ import annotations

from typing import ClassVar

from asched.framework.session_objects import Task
from asched.framework.session_plugins import PreemptablePlugin, ReclaimablePlugin, VictimTest

SYSTEM_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
SYSTEM_NAMESPACE = "kube-system"


def is_protected(task: Task) -> bool:
    """Whether the pod is of a system priority class or of the system's namespace."""
    spec = task.info.pod.spec
    return spec.priority_class_name in SYSTEM_CLASSES or task.info.namespace == SYSTEM_NAMESPACE


class Conformance(PreemptablePlugin, ReclaimablePlugin):
    name: ClassVar[str] = "conformance"

    def preemptable(self, preemptor: Task) -> VictimTest:
        return _Unprotected()

    def reclaimable(self, reclaimer: Task) -> VictimTest:
        return _Unprotected()


class _Unprotected:
    def consents(self, candidate: Task) -> bool:
        return not is_protected(candidate)

    def take(self, candidate: Task) -> None:
        """Whoever went before makes no difference."""
