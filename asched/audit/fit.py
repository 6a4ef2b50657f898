"""Would a pod that does not exist run? Decides a manifest against a state of the journal.

The pod passes the defaults, admission and validation of an API server, and is then observed by a
private copy of the state. Nothing is recorded. Filters and scores are those of the scheduling
cycle; pods that wait in the queue are not placed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from asched.apiserver.cluster import SYSTEM_PRIORITY_CLASSES, EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.audit.explain import explain_pending
from asched.audit.explanation import Explanation
from asched.audit.lookup import AuditError, fold_before
from asched.audit.timeline import time_of
from asched.cycle.inspect import AttemptOutcome
from asched.framework.runtime.profile import PluginLoader
from asched.framework.runtime.strict import nearest
from asched.journal.statistics import last_seq_at
from asched.journal.store import JournalStore
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import DecodeError, Resource, decode
from asched.model.workloads import PriorityClass
from asched.state.cluster import ClusterState
from asched.state.observe import observe_object

MAX_BEST: Final = 10
"""Best nodes that are named."""
_DEFAULT_SCHEDULER: Final = "default-scheduler"


class FitAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a pod would run, which is also its JSON form (see ``docs/fit.md``)."""

    seq: int
    """The record after which the pod would be observed."""
    at: datetime
    fits: bool
    sentence: str
    nodes: tuple[str, ...]
    """The best nodes; any of them may be chosen. At most :data:`MAX_BEST`; empty if the pod does
    not fit."""
    notes: tuple[str, ...]
    explanation: Explanation
    """As ``asched explain -o json`` for a pod without attempts."""


async def fit(
    journal: JournalStore,
    manifest: Mapping[str, Any],
    load: PluginLoader,
    *,
    at_ns: int | None = None,
    last_seq: int | None = None,
) -> FitAnswer:
    """Decides the pod of a manifest on the state at a time, or after a record.

    ``last_seq`` has precedence over ``at_ns``, nanoseconds since the epoch. Raises
    :class:`AuditError` for a manifest that an API server rejects or that no profile serves,
    :class:`~asched.journal.errors.JournalError`, ProfileError.
    """
    end = (await journal.head()).seq if at_ns is None else await last_seq_at(journal, at_ns)
    end = end if last_seq is None else last_seq
    if end < 1:
        raise AuditError("the journal has no records until then")
    fold = await fold_before(journal, load, end + 1)
    state = fold.state
    pod, notes = _admitted(manifest, state)
    _check_scheduler(pod, state)
    observed = observe_object(state, pod)
    if observed is None:
        raise AuditError(f"pod {pod.key} has finished: its status has phase {pod.status.phase}")
    fold.apply(observed)
    found = explain_pending(state, load, pod.key)
    fits = found.outcome == AttemptOutcome.SCHEDULED.value
    best = tuple(node.name for node in found.nodes if fits and node.rank == 1)
    return FitAnswer(
        seq=end,
        at=time_of(state.date_ns),
        fits=fits,
        sentence=_sentence(found, best),
        nodes=best[:MAX_BEST],
        notes=notes,
        explanation=found,
    )


def _admitted(manifest: Mapping[str, Any], state: ClusterState) -> tuple[Pod, tuple[str, ...]]:
    """The pod as an API server would store it, and what was changed in the manifest."""
    if manifest.get("kind") != "Pod" or manifest.get("apiVersion") != "v1":
        kind = f"{manifest.get('apiVersion', '?')} {manifest.get('kind', '?')}"
        raise AuditError(f"the manifest is of {kind}; expected v1 Pod")
    notes: list[str] = []
    written, namespace = _prepared(manifest, state, notes)
    now_s = state.date_ns / NS_PER_S
    cluster = EmbeddedCluster(clock=lambda: now_s, seed=0)
    try:
        if namespace not in ("default", "kube-system", "kube-public", "kube-node-lease"):
            cluster.create("namespaces", {"metadata": {"name": namespace}})
        for known in _priority_classes(written["spec"], state):
            cluster.create("priorityclasses", known)
        stored = cluster.create("pods", written, namespace=namespace)
        pod = decode(Resource.PODS, msgspec.json.encode(stored))
    except StatusError as error:
        raise AuditError(f"the API server would reject the pod: {_line(error)}") from None
    except DecodeError as error:
        raise AuditError(f"the pod cannot be read: {_line(error)}") from None
    assert isinstance(pod, Pod), "decoded as a pod"
    return pod, tuple(notes)


def _prepared(
    manifest: Mapping[str, Any], state: ClusterState, notes: list[str]
) -> tuple[dict[str, Any], str]:
    """The manifest of a new pod without a node, and its namespace."""
    metadata, spec = manifest.get("metadata"), manifest.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise AuditError("the manifest has no metadata or no spec")
    namespace = metadata.get("namespace") or "default"
    name = metadata.get("name") or f"{metadata.get('generateName') or 'pod-'}fit"
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise AuditError("metadata: name and namespace must be strings")
    if f"{namespace}/{name}" in state.pods:
        notes.append(f"pod {namespace}/{name} exists; the answer is for another one of that form")
        number = 1
        while f"{namespace}/{name}-{number}" in state.pods:
            number += 1
        name = f"{name}-{number}"
    if spec.get("nodeName"):
        notes.append("spec.nodeName is ignored")
    spec = {key: value for key, value in spec.items() if key != "nodeName"}
    names = list(state.profiles)
    if "schedulerName" not in spec and _DEFAULT_SCHEDULER not in names and len(names) == 1:
        spec["schedulerName"] = names[0]
        notes.append(f"the manifest names no scheduler; {names[0]} decides")
    kept = ("labels", "annotations", "ownerReferences")
    of_pod = {key: metadata[key] for key in kept if metadata.get(key)}
    written = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**of_pod, "name": name, "namespace": namespace},
        "spec": spec,
    }
    return written, namespace


def _priority_classes(spec: dict[str, Any], state: ClusterState) -> list[dict[str, Any]]:
    """The classes of the journal; one that it does not hold has the priority in the manifest."""
    known = {
        found.name: {
            "metadata": {"name": found.name},
            "value": found.value,
            "globalDefault": found.global_default,
            "preemptionPolicy": found.preemption_policy,
        }
        for found in state.objects(PriorityClass).values()
    }
    wanted, priority = spec.get("priorityClassName"), spec.get("priority")
    if isinstance(wanted, str) and isinstance(priority, int):
        known.setdefault(wanted, {"metadata": {"name": wanted}, "value": priority})
    return [found for name, found in known.items() if name not in SYSTEM_PRIORITY_CLASSES]


def _check_scheduler(pod: Pod, state: ClusterState) -> None:
    """Raises :class:`AuditError` if no profile decides the pod."""
    name = pod.spec.scheduler_name
    if name in state.profiles:
        return
    if name in state.sessions:
        raise AuditError(f"batch sessions place the pods of {name}; fit answers for profiles only")
    guess = nearest(name, [*state.profiles]) or next(iter(state.profiles), "")
    hint = f"; profiles: {', '.join(state.profiles)}" if not guess else f"; did you mean {guess}?"
    raise AuditError(f"the pod names scheduler {name}, which has no profile at that time{hint}")


def _sentence(found: Explanation, best: tuple[str, ...]) -> str:
    if best:
        where = best[0] if len(best) == 1 else f"one of {len(best)} nodes with the best score"
        return f"The pod would run on {where}; {found.feasible} of {found.nodes_total} nodes fit."
    reason = " ".join(found.message.split()).rstrip(".")
    if found.outcome == AttemptOutcome.GATED.value:
        gate = "; ".join(", ".join(one.reasons) for one in found.pre_filter)
        return f"The pod would be gated: {reason or gate}."
    return f"The pod would not run: {reason or found.outcome}."


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
