"""Job classes, to report waits by class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from asched.audit.lookup import AuditError
from asched.audit.whatif.measures import Times, node_of
from asched.model.pod import Pod
from asched.planning.items import ClassFigures
from asched.simulator.trace import PodRun

DEFAULT: Final = "namespace"
EXPECTED: Final = "namespace, priority, owner, or label:NAME"
MAX_CLASSES: Final = 50
OTHERS: Final = "(others)"
NONE: Final = "(none)"

_LABEL: Final = "label:"


def classifier(text: str) -> Callable[[Pod], str]:
    """The class of a pod by ``namespace``, ``priority``, ``owner`` or ``label:NAME``.

    Raises AuditError for other text.
    """
    if text.startswith(_LABEL) and len(text) > len(_LABEL):
        label = text.removeprefix(_LABEL)
        return lambda pod: pod.metadata.labels.get(label, NONE)
    known: dict[str, Callable[[Pod], str]] = {
        "namespace": lambda pod: pod.metadata.namespace,
        "priority": lambda pod: pod.spec.priority_class_name or str(pod.spec.priority or 0),
        "owner": _owner,
    }
    if text not in known:
        raise AuditError(f'job class "{text}" is unknown; expected {EXPECTED}')
    return known[text]


def _owner(pod: Pod) -> str:
    owner = pod.metadata.controller
    return NONE if owner is None else f"{owner.kind}/{owner.name}"


def class_figures(pods: Iterable[PodRun], text: str) -> dict[str, ClassFigures]:
    """The figures by class, sorted by name; the smallest classes beyond :data:`MAX_CLASSES` count
    as one. Raises as :func:`classifier`."""
    class_of = classifier(text)
    found: defaultdict[str, list[PodRun]] = defaultdict(list)
    for run in pods:
        found[class_of(run.pod)].append(run)
    largest = sorted(found, key=lambda name: (-len(found[name]), name))
    for name in largest[MAX_CLASSES:]:
        found[OTHERS].extend(found.pop(name))
    return {name: _figures(found[name]) for name in sorted(found)}


def _figures(pods: list[PodRun]) -> ClassFigures:
    waits_ns = sorted(pod.bound_ns - pod.created_ns for pod in pods if pod.bound_ns is not None)
    placed = sum(bool(node_of(pod)) for pod in pods)
    return ClassFigures(len(pods), placed, Times.of(waits_ns))
