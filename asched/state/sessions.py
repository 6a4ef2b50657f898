"""State of batch sessions: when the next one is due, and the pods that wait for it.

These pods are not in the :class:`SchedulingQueue`. A session runs every period, but only if it
could decide anything: an idle cluster adds nothing to the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from asched.framework.interface import ExtensionPoint
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginWeight, ProfileSpec
from asched.framework.sessions import SessionSpec
from asched.model.groups import (
    CustomPodGroup,
    CustomPodGroupStatus,
    CustomQueue,
    NativeGroup,
    PodGroup,
    Workload,
)
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.resources import KINDS
from asched.model.workloads import PodDisruptionBudget, PriorityClass
from asched.state.session_records import PodGroupStatusDecided
from asched.state.stored_form import StoredForm

RETRY_NS = 300 * NS_PER_S
"""Pods that wait while nothing changes are retried after this time, as in kube-scheduler
(``podMaxInUnschedulablePodsDuration``)."""

_DEFINE_JOBS = (CustomPodGroup, CustomQueue, PodGroup, Workload, PodDisruptionBudget, PriorityClass)
"""Kinds that define jobs. Other objects matter to pending pods only."""

GroupId = tuple[str, str]
"""The type name of a PodGroup and its ``namespace/name``."""


class FailedBinding(NamedTuple):
    """A binding that a session decided and that failed."""

    uid: str
    node: str
    """The node of the last failure."""
    failures: int
    """Failures in a row."""
    backoff_until_ns: int


class SessionProfile(msgspec.Struct, array_like=True):
    """One scheduler name that sessions serve. A checkpoint encodes this struct directly."""

    spec: SessionSpec
    number: int = 0
    """Number of the last session; 0 before the first."""
    last_run_ns: int = 0
    """Time of the last session."""
    pending: dict[str, None] = {}
    """Keys of the waiting pods in order of arrival."""
    failed_bindings: dict[str, FailedBinding] = {}
    """By pod key, until the pod is bound or deleted."""
    jobs_changed: bool = True
    """Since the last session."""
    surroundings_changed: bool = True
    """Since the last session."""

    def due_ns(self) -> int | None:
        """When the next session is due; None while it could decide nothing."""
        period_ns = round(self.spec.period_s * NS_PER_S)
        if self.jobs_changed or (self.surroundings_changed and self.pending):
            return self.last_run_ns + period_ns
        if not self.pending:
            return None
        retry_ns = self.last_run_ns + RETRY_NS
        ends = (
            failed.backoff_until_ns
            for failed in self.failed_bindings.values()
            if failed.backoff_until_ns > self.last_run_ns
        )
        return min(max(min(ends, default=retry_ns), self.last_run_ns + period_ns), retry_ns)

    def backoff_node(self, key: str, uid: str, now_ns: int) -> str:
        """The node of the pod's failed binding while the pod backs off; else empty."""
        failed = self.failed_bindings.get(key)
        if failed is None or failed.uid != uid or failed.backoff_until_ns <= now_ns:
            return ""
        return failed.node

    def mark_changed(self, *, jobs: bool) -> None:
        """The jobs themselves changed, or else their surroundings."""
        if jobs:
            self.jobs_changed = True
        else:
            self.surroundings_changed = True

    def ran(self, number: int, now_ns: int) -> None:
        """A session ran on all changes until now."""
        self.number, self.last_run_ns = number, now_ns
        self.jobs_changed = self.surroundings_changed = False

    @property
    def changed(self) -> bool:
        return self.jobs_changed or self.surroundings_changed

    def copy(self) -> SessionProfile:
        return msgspec.structs.replace(
            self, pending={**self.pending}, failed_bindings={**self.failed_bindings}
        )


class GroupWrite(msgspec.Struct, array_like=True):
    """The last status that was decided for a PodGroup."""

    decision: PodGroupStatusDecided
    in_flight: bool = True
    """The outcome of the write is not known."""


class SessionsSnapshot(StoredForm):
    profiles: tuple[SessionProfile, ...]
    finished: tuple[PodInfo, ...]
    writes: tuple[GroupWrite, ...]


class Sessions:
    """All profiles that sessions serve. Only the fold changes them."""

    def __init__(self) -> None:
        self._profiles: dict[str, SessionProfile] = {}
        self.finished: dict[str, PodInfo] = {}
        """Finished pods of jobs by key. The rest of the state has no finished pods."""
        self.writes: dict[GroupId, GroupWrite] = {}

    def __bool__(self) -> bool:
        return bool(self._profiles)

    def __iter__(self) -> Iterator[SessionProfile]:
        """In the order of the configuration."""
        return iter(self._profiles.values())

    def __contains__(self, scheduler_name: str) -> bool:
        return scheduler_name in self._profiles

    def get(self, scheduler_name: str) -> SessionProfile | None:
        return self._profiles.get(scheduler_name)

    @property
    def specs(self) -> tuple[SessionSpec, ...]:
        return tuple(profile.spec for profile in self)

    def next_timer_ns(self) -> int | None:
        """When the next session is due."""
        if not self._profiles:  # asked in every turn
            return None
        times = (profile.due_ns() for profile in self)
        return min((ns for ns in times if ns is not None), default=None)

    def is_in_job(self, pod: Pod) -> bool:
        """Whether the pod belongs to a job of any session: it has the session's scheduler name, or
        names a PodGroup (kube-batch counts its pods under any scheduler)."""
        return bool(self._profiles) and (
            pod.spec.scheduler_name in self._profiles or _names_group(pod)
        )

    def has_finished(self, key: str, uid: str) -> bool:
        """Whether the pod of that uid is known as finished."""
        info = self.finished.get(key)
        return info is not None and info.uid == uid

    def is_pending(self, pod: Pod) -> bool:
        """Whether the pod waits for the next session of its scheduler name."""
        own = self._profiles.get(pod.spec.scheduler_name)
        return own is not None and pod.key in own.pending

    # -- for the fold -------------------------------------------------------------------------

    def load(self, specs: Iterable[SessionSpec]) -> None:
        """Replace the profiles. One that stays keeps its session number. The caller passes all pods
        to :meth:`on_pod_changed` afterwards."""
        before, self._profiles = self._profiles, {}
        for spec in specs:
            known = before.get(spec.scheduler_name)
            profile = self._profiles[spec.scheduler_name] = known or SessionProfile(spec)
            profile.spec = spec
            profile.pending.clear()
            profile.mark_changed(jobs=True)
        self.finished = {k: info for k, info in self.finished.items() if self.is_in_job(info.pod)}
        if not self._profiles:
            self.writes.clear()

    def on_pod_changed(self, pod: Pod, *, pending: bool) -> None:
        """``pending``: the pod needs a node and has none."""
        if not self._profiles:
            return
        if self.finished and not self.has_finished(pod.key, pod.uid):
            self.finished.pop(pod.key, None)
        own = self._profiles.get(pod.spec.scheduler_name)
        if own is not None:
            if pending:
                own.pending.setdefault(pod.key)
            else:
                own.pending.pop(pod.key, None)
        grouped = _names_group(pod)
        for profile in self._profiles.values():
            profile.mark_changed(jobs=grouped or profile is own)

    def on_bind_failed(
        self, pod: Pod, node: str, now_ns: int, backoff_ns: Callable[[int], int]
    ) -> None:
        """Start a backoff that grows with the failures in a row.

        kube-batch puts such a pod into a rate-limited queue and treats it as binding until then
        (``resyncTask``). Here the backoff is that of a pod that is scheduled on its own.
        """
        own = self._profiles.get(pod.spec.scheduler_name)
        if own is None:
            return
        before = own.failed_bindings.get(pod.key)
        failures = 1 + (before.failures if before is not None and before.uid == pod.uid else 0)
        own.failed_bindings[pod.key] = FailedBinding(
            pod.uid, node, failures, now_ns + backoff_ns(failures)
        )

    def reset_backoff(self, pod: Pod) -> None:
        """The pod is bound or deleted."""
        own = self._profiles.get(pod.spec.scheduler_name)
        if own is not None and own.failed_bindings:
            own.failed_bindings.pop(pod.key, None)

    def on_pod_finished(self, info: PodInfo) -> None:
        """Keep a finished pod if it belongs to a job."""
        if self.is_in_job(info.pod):
            self.finished[info.key] = info
            self.on_pod_changed(info.pod, pending=False)

    def on_finished_deleted(self, key: str, uid: str) -> None:
        if self.has_finished(key, uid):
            self.on_pod_changed(self.finished.pop(key).pod, pending=False)

    def on_object_observed(self, observed: Object) -> None:
        """An object other than a pod was added or updated."""
        self._mark_changed_by(type(observed))
        if isinstance(observed, CustomPodGroup | NativeGroup):
            group = type(observed).__name__, observed.key
            write = self.writes.get(group)
            # A failed write is worth another try after somebody else wrote the PodGroup.
            if (
                write is not None
                and not write.in_flight
                and not status_matches(observed, write.decision)
            ):
                del self.writes[group]

    def on_object_deleted(self, deleted: Object) -> None:
        self._mark_changed_by(type(deleted))
        self.writes.pop((type(deleted).__name__, deleted.key), None)

    def _mark_changed_by(self, kind: type[Object]) -> None:
        for profile in self._profiles.values():
            profile.mark_changed(jobs=issubclass(kind, _DEFINE_JOBS))

    def begin_write(self, decision: PodGroupStatusDecided) -> None:
        self.writes[decision.kind, decision.group] = GroupWrite(decision)

    def end_write(self, kind: str, group: str, uid: str) -> None:
        """The write succeeded or failed. It is not retried until the status changes or somebody
        else writes the PodGroup."""
        write = self.writes.get((kind, group))
        if write is not None and write.decision.uid == uid:
            write.in_flight = False

    def snapshot(self) -> SessionsSnapshot:
        return SessionsSnapshot(
            tuple(profile.copy() for profile in self),
            tuple(self.finished.values()),
            tuple(msgspec.structs.replace(write) for write in self.writes.values()),
        )

    def restore(self, snapshot: SessionsSnapshot) -> None:
        self._profiles = {profile.spec.scheduler_name: profile for profile in snapshot.profiles}
        self.finished = {info.key: info for info in snapshot.finished}
        self.writes = {(w.decision.kind, w.decision.group): w for w in snapshot.writes}


def status_matches(group: CustomPodGroup | NativeGroup, decision: PodGroupStatusDecided) -> bool:
    """Whether the PodGroup has the status that was decided."""
    conditions = {(c.type, c.status, c.reason, c.message) for c in group.status.conditions}
    if group.uid != decision.uid or conditions != _conditions(decision):
        return False
    # The groups of Kubernetes have only conditions.
    return isinstance(group, NativeGroup) or _counts(group.status) == _counts(decision)


def same_status(one: PodGroupStatusDecided, other: PodGroupStatusDecided) -> bool:
    """Whether both decide the same status, in whichever session."""
    if _conditions(one) != _conditions(other):
        return False
    return issubclass(KINDS[one.kind], NativeGroup) or _counts(one) == _counts(other)


def _conditions(decision: PodGroupStatusDecided) -> set[tuple[str, str, str, str]]:
    """The conditions without the session that set them."""
    return {(c.type, c.status, c.reason, c.message) for c in decision.conditions}


def _counts(status: CustomPodGroupStatus | PodGroupStatusDecided) -> tuple[str, int, int, int]:
    return str(status.phase), status.running, status.succeeded, status.failed


def _names_group(pod: Pod) -> bool:
    return bool(pod.metadata.annotations.group_name) or pod.spec.scheduling_group is not None


VOLUME_BINDING: Final = "VolumeBinding"


def binding_spec(scheduler_name: str) -> ProfileSpec:
    """The profile that binds pods which a session placed.

    The plugins of a session know nothing of claims that wait for their consumer. The built-in
    VolumeBinding reserves volumes for such pods and binds them before the pod.
    """
    volumes, points = (PluginWeight(VOLUME_BINDING),), ExtensionPoint
    return ProfileSpec(
        scheduler_name,
        {
            points.QUEUE_SORT.field: (PluginWeight("PrioritySort"),),
            points.PRE_FILTER.field: volumes,
            points.FILTER.field: volumes,
            points.RESERVE.field: volumes,
            points.PRE_BIND.field: volumes,
            points.BIND.field: (PluginWeight("DefaultBinder"),),
        },
    )
