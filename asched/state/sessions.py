"""What the state keeps of batch sessions: when each profile's next one is due, and who waits for it.

A profile that is served by sessions has no queue in the :class:`SchedulingQueue`: its pending pods
wait for the next session together. A session is held every period, but only where it could come to
something: an idle cluster leaves nothing in the journal.

What sees to the volumes of pods that sessions place.

A session has plugins of its own kind, which know nothing of claims that wait for their consumer. The
built-in VolumeBinding sets volumes aside for such pods, and has them bound before the pod is, just as in
a profile that schedules pod by pod.
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
    PodGroup,
    Workload,
)
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.workloads import PodDisruptionBudget, PriorityClass
from asched.state.session_records import PodGroupDecided

RETRY_NS = 300 * NS_PER_S
"""Pods that wait while nothing changes are tried again after this long: chance may help, and time.
As long as kube-scheduler leaves a rejected pod (``podMaxInUnschedulablePodsDuration``)."""

_OF_JOBS = (CustomPodGroup, CustomQueue, PodGroup, Workload, PodDisruptionBudget, PriorityClass)
"""Kinds that make jobs what they are. Other objects bear on pending pods only."""

GroupId = tuple[str, str]
"""Which PodGroup: the name of its type, and ``namespace/name``."""


class RefusedBinding(NamedTuple):
    """A binding that sessions decided failed, and perhaps others of that pod before."""

    uid: str
    node: str
    """Where the last one was to be."""
    times: int
    """How many in a row."""
    until_ns: int
    """Not before then is the pod to be placed again."""


class SessionProfile:
    """One scheduler name that is served by sessions."""

    __slots__ = (
        "_jobs_changed", "_surroundings_changed", "held_ns", "number", "pending", "refused", "spec",
    )  # fmt: skip

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.number = 0
        """Of the last session; 0 before the first."""
        self.held_ns = 0
        """When the last session was held."""
        self.pending: dict[str, None] = {}
        """Keys of the pods that wait, in order of arrival."""
        self.refused: dict[str, RefusedBinding] = {}
        """By key of the pod, until one is bound or goes."""
        self._jobs_changed = True
        self._surroundings_changed = True

    def due_ns(self) -> int | None:
        """When the next session is to be held; None while it could come to nothing."""
        period_ns = round(self.spec.period_s * NS_PER_S)
        if self._jobs_changed or (self._surroundings_changed and self.pending):
            return self.held_ns + period_ns
        if not self.pending:
            return None
        retry_ns = self.held_ns + RETRY_NS
        ends = (r.until_ns for r in self.refused.values() if r.until_ns > self.held_ns)
        return min(max(min(ends, default=retry_ns), self.held_ns + period_ns), retry_ns)

    def put_off(self, key: str, uid: str, now_ns: int) -> str:
        """The node to which the pod could not be bound, while it is not to be tried again yet; else
        empty."""
        refused = self.refused.get(key)
        if refused is None or refused.uid != uid or refused.until_ns <= now_ns:
            return ""
        return refused.node

    def stir(self, *, of_jobs: bool) -> None:
        """Something happened: to the jobs themselves, or to what is around them."""
        if of_jobs:
            self._jobs_changed = True
        else:
            self._surroundings_changed = True

    def held(self, number: int, now_ns: int) -> None:
        """A session was held on all that happened until now."""
        self.number, self.held_ns = number, now_ns
        self._jobs_changed = self._surroundings_changed = False

    @property
    def changes(self) -> tuple[bool, bool]:
        """Whether jobs and surroundings changed since the last session."""
        return self._jobs_changed, self._surroundings_changed

    def restore(self, number: int, held_ns: int, changes: tuple[bool, bool]) -> None:
        """For checkpoints: as it was."""
        self.number, self.held_ns = number, held_ns
        self._jobs_changed, self._surroundings_changed = changes


class GroupWrite(msgspec.Struct):
    """The last status that was decided for a PodGroup."""

    decision: PodGroupDecided
    under_way: bool = True
    """It is not known how the writing ended."""


class Sessions:
    """All profiles that are served by sessions. Only the fold changes it."""

    def __init__(self) -> None:
        self._profiles: dict[str, SessionProfile] = {}
        self.finished: dict[str, PodInfo] = {}
        """Pods of jobs that have finished, by key. Nothing else knows of finished pods."""
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
        times = (profile.due_ns() for profile in self)
        return min((ns for ns in times if ns is not None), default=None)

    def has_jobs_with(self, pod: Pod) -> bool:
        """Whether the pod belongs to a job of any session: it is one of its scheduler's, or names a
        PodGroup (kube-batch counts the pods of a group whoever scheduled them)."""
        return bool(self._profiles) and (
            pod.spec.scheduler_name in self._profiles or _names_group(pod)
        )

    def remembers(self, key: str, uid: str) -> bool:
        """Whether this very pod is known to have finished."""
        info = self.finished.get(key)
        return info is not None and info.uid == uid

    # -- the fold's side ----------------------------------------------------------------------

    def load(self, specs: Iterable[SessionSpec]) -> None:
        """The profiles from here on. One that was there before goes on counting its sessions. The
        caller notes all pods afterwards."""
        before, self._profiles = self._profiles, {}
        for spec in specs:
            known = before.get(spec.scheduler_name)
            profile = self._profiles[spec.scheduler_name] = known or SessionProfile(spec)
            profile.spec = spec
            profile.pending.clear()
            profile.stir(of_jobs=True)
        self.finished = {
            k: info for k, info in self.finished.items() if self.has_jobs_with(info.pod)
        }
        if not self._profiles:
            self.writes.clear()

    def note(self, pod: Pod, *, pending: bool) -> None:
        """The pod is now as given; ``pending`` says that it wants a node and has none."""
        if not self._profiles:
            return
        if self.finished and not self.remembers(pod.key, pod.uid):
            self.finished.pop(pod.key, None)
        name = pod.spec.scheduler_name
        own = self._profiles.get(name)
        if own is not None:
            if pending:
                own.pending.setdefault(pod.key)
            else:
                own.pending.pop(pod.key, None)
        grouped = _names_group(pod)
        for profile in self._profiles.values():
            profile.stir(of_jobs=grouped or profile is own)

    def binding_failed(
        self, pod: Pod, node: str, now_ns: int, backoff_ns: Callable[[int], int]
    ) -> None:
        """The pod is to be left alone for a while, the longer the more often it failed in a row.

        kube-batch hands such a pod to a queue with a limit of its rate, and leaves it as if it were being
        bound until its turn has come there (``resyncTask``); the pauses are those of a pod that is tried
        by itself.
        """
        own = self._profiles.get(pod.spec.scheduler_name)
        if own is None:
            return
        before = own.refused.get(pod.key)
        times = 1 + (before.times if before is not None and before.uid == pod.uid else 0)
        own.refused[pod.key] = RefusedBinding(pod.uid, node, times, now_ns + backoff_ns(times))

    def settled(self, pod: Pod) -> None:
        """The pod is bound, or gone: how often that failed is of no interest any more."""
        own = self._profiles.get(pod.spec.scheduler_name)
        if own is not None and own.refused:
            own.refused.pop(pod.key, None)

    def awaits_one(self, pod: Pod) -> bool:
        """Whether the pod is among those that the next session of its scheduler is to place."""
        own = self._profiles.get(pod.spec.scheduler_name)
        return own is not None and pod.key in own.pending

    def finish(self, info: PodInfo) -> None:
        """A pod is known to have finished: what it leaves is its part in its job."""
        if self.has_jobs_with(info.pod):
            self.finished[info.key] = info
            self.note(info.pod, pending=False)

    def finished_gone(self, key: str, uid: str) -> None:
        if self.remembers(key, uid):
            self.note(self.finished.pop(key).pod, pending=False)

    def object_seen(self, seen: Object) -> None:
        """An object other than a pod is as given."""
        self._stir_by(type(seen))
        if isinstance(seen, CustomPodGroup | PodGroup):
            group = type(seen).__name__, seen.key
            write = self.writes.get(group)
            # Where our status was not taken, somebody else's word makes it worth another try.
            if write is not None and not write.under_way and not says(seen, write.decision):
                del self.writes[group]

    def object_gone(self, gone: Object) -> None:
        self._stir_by(type(gone))
        self.writes.pop((type(gone).__name__, gone.key), None)

    def _stir_by(self, kind: type[Object]) -> None:
        for profile in self._profiles.values():
            profile.stir(of_jobs=issubclass(kind, _OF_JOBS))

    def decide_group(self, decision: PodGroupDecided) -> None:
        self.writes[decision.kind, decision.group] = GroupWrite(decision)

    def end_write(self, kind: str, group: str, uid: str) -> None:
        """The status was written, or was given up: it is not tried again until it is another one,
        or somebody touches the PodGroup."""
        write = self.writes.get((kind, group))
        if write is not None and write.decision.uid == uid:
            write.under_way = False


def says(group: CustomPodGroup | PodGroup, decision: PodGroupDecided) -> bool:
    """Whether the PodGroup has the status that was decided."""
    conditions = {(c.type, c.status, c.reason, c.message) for c in group.status.conditions}
    if group.uid != decision.uid or conditions != _substance(decision):
        return False
    # Kubernetes' own has conditions and nothing else.
    return isinstance(group, PodGroup) or _counts(group.status) == _counts(decision)


def same_status(one: PodGroupDecided, other: PodGroupDecided) -> bool:
    """Whether both decide the same, whichever session decides it."""
    if _substance(one) != _substance(other):
        return False
    return one.kind == PodGroup.__name__ or _counts(one) == _counts(other)


def _substance(decision: PodGroupDecided) -> set[tuple[str, str, str, str]]:
    """What the conditions say, without the session that set them."""
    return {(c.type, c.status, c.reason, c.message) for c in decision.conditions}


def _counts(status: CustomPodGroupStatus | PodGroupDecided) -> tuple[str, int, int, int]:
    return str(status.phase), status.running, status.succeeded, status.failed


def _names_group(pod: Pod) -> bool:
    return bool(pod.metadata.annotations.group_name) or pod.spec.scheduling_group is not None


VOLUME_BINDING: Final = "VolumeBinding"


def binding_spec(scheduler_name: str) -> ProfileSpec:
    """The profile under which a pod of that scheduler is bound."""
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
