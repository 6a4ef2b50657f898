"""Explains a group of pods: a gang, or the pods of an owner. Which reason holds most of them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from asched.audit.explain_job import JobExplanation, explain_job
from asched.audit.gangs import FINISHED, GangPhase, GangSummary, gang_summary, member_keys
from asched.audit.history import Owner
from asched.audit.lookup import AuditError, PodName, state_at
from asched.audit.pod_state import (
    AWAITS_SESSION,
    is_pending,
    pending_since_ns,
    pod_state,
    rejecting_plugins,
    why_pending,
)
from asched.audit.timeline import time_of
from asched.framework.pod_groups import GANG_SCHEDULING, PodGroupKey, find_group
from asched.framework.runtime.profile import PluginLoader
from asched.framework.runtime.strict import nearest
from asched.journal.store import JournalStore
from asched.model.quantity import NS_PER_S
from asched.state.cluster import ClusterState, PlacementState, PodEntry

_EXAMPLES = 5


class GroupMember(msgspec.Struct, frozen=True, rename="camel"):
    """A pod of the group."""

    namespace: str
    name: str
    uid: str
    state: str
    node: str
    priority: int
    attempts: int
    since: datetime | None
    """When it was first observed pending; None if it has a node."""
    waited_s: float | None
    reason: str
    """Why it has no node."""


class GroupReason(msgspec.Struct, frozen=True, rename="camel"):
    """Why pods of the group have no node; most frequent first."""

    reason: str
    """The most frequent message."""
    plugins: tuple[str, ...]
    pods: int
    examples: tuple[str, ...]
    """Names of some of the pods."""


class GroupExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A gang or owner, which is also its JSON form (see ``docs/how-to/show.md``)."""

    kind: str
    """``gang``, or the kind of the owner."""
    namespace: str
    name: str
    seq: int
    """The answer holds after this record."""
    at: datetime
    sentence: str
    states: dict[str, int]
    """Pods by state."""
    reasons: tuple[GroupReason, ...]
    members: tuple[GroupMember, ...]
    """Pods without a node first, by name."""
    ended: int = 0
    """Earlier pods of the group that were deleted or have finished, as far as they are known."""
    gang: GangSummary | None = None
    job: JobExplanation | None = None
    """For pods without a node that batch sessions serve: their last session."""


class GroupName(NamedTuple):
    """What identifies a group."""

    kind: str
    """``gang``, or the kind of an owner."""
    namespace: str
    """May be empty for an owner."""
    name: str

    @classmethod
    def of_gang(cls, text: str) -> GroupName:
        """Raises :class:`AuditError` if the text is not NAMESPACE/NAME."""
        namespace, slash, name = text.partition("/")
        if not slash or not namespace or not name or "/" in name:
            raise AuditError(f"{text!r} is not a gang; expected NAMESPACE/NAME of its PodGroup")
        return cls(GANG, namespace, name)

    @classmethod
    def of_owner(cls, text: str) -> GroupName:
        """Raises :class:`AuditError`."""
        owner = Owner.parse(text)
        return cls(owner.kind, owner.namespace, owner.name)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        if self.kind == GANG:
            return f"gang {self.key}"
        namespace = f"{self.namespace}/" if self.namespace else ""
        return f"{namespace}{self.kind}/{self.name}"


GANG = "gang"


def keys_of(state: ClusterState, group: GroupName) -> list[str]:
    """The keys of the group's present pods."""
    if group.kind != GANG:
        owner = Owner(group.namespace, group.kind, group.name)
        return [
            key
            for key, entry in state.pods.items()
            # First, because reading a pod of a restored state creates it.
            if group.namespace in ("", entry.info.namespace) and owner.owns(entry.info.pod, state)
        ]
    members = (member_keys(state, each) for each in _pod_groups(group))
    return [key for keys in members for key in keys if key in state.pods]


def _pod_groups(group: GroupName) -> tuple[PodGroupKey, PodGroupKey]:
    """PodGroups of ``scheduling.k8s.io`` and of kube-batch and Volcano may have equal names."""
    return PodGroupKey(group.key, True), PodGroupKey(group.key, False)


def _gang_of(state: ClusterState, group: GroupName) -> GangSummary | None:
    if group.kind != GANG:
        return None
    known = [
        each
        for each in _pod_groups(group)
        if find_group(state, each) is not None or state.groups.members(each).statuses
    ]
    found = (gang_summary(state, each) for each in known)
    return next((gang for gang in found if gang is not None), None)


def explained(state: ClusterState, seq: int, group: GroupName, ended: int = 0) -> GroupExplanation:
    """The group after record ``seq``, without its session. ``ended`` of its pods were deleted or
    have finished.

    Raises :class:`AuditError` if there is no such group.
    """
    gang = _gang_of(state, group)
    keys = keys_of(state, group)
    if not keys and gang is None and not ended:
        raise AuditError(_unknown(state, seq, group))
    entries = [state.pods[key] for key in keys]
    members = sorted(
        (_member(state, entry) for entry in entries),
        key=lambda member: (bool(member.node), member.namespace, len(member.name), member.name),
    )
    pending = [entry for entry in entries if is_pending(state, entry)]
    reasons = tuple(_reasons(state, pending))
    states = Counter(member.state for member in members)
    if gang is not None and FINISHED in gang.states:
        states[FINISHED] = gang.states[FINISHED]
    return GroupExplanation(
        kind=group.kind,
        namespace=group.namespace,
        name=group.name,
        seq=seq,
        at=time_of(state.date_ns),
        sentence=_sentence(gang, states, reasons, ended),
        states=dict(states.most_common()),
        reasons=reasons,
        members=tuple(members),
        ended=ended,
        gang=gang,
    )


def _unknown(state: ClusterState, seq: int, group: GroupName) -> str:
    if group.kind == GANG:
        known = [each.key for each in state.groups]
        guess = nearest(group.key, known)
    else:
        owners = (entry.info.pod.metadata.controller for entry in state.pods.values())
        kinds = {f"{owner.kind}/{owner.name}" for owner in owners if owner is not None}
        guess = nearest(f"{group.kind}/{group.name}", [*kinds])
    hint = f"; did you mean {guess}?" if guess else ""
    return f"no pod of {group} exists at record {seq}{hint}"


def _member(state: ClusterState, entry: PodEntry) -> GroupMember:
    info, key = entry.info, entry.info.key
    since_ns = pending_since_ns(state, entry) if is_pending(state, entry) else 0
    queued = state.queue.find_queued_or_in_flight(key)
    return GroupMember(
        namespace=info.namespace,
        name=info.name,
        uid=info.uid,
        state=pod_state(state, key),
        node=entry.node,
        priority=info.priority,
        attempts=0 if queued is None else queued.attempts,
        since=time_of(since_ns) if since_ns else None,
        waited_s=(state.date_ns - since_ns) / NS_PER_S if since_ns else None,
        reason="" if entry.node else why_pending(state, entry),
    )


def _reasons(state: ClusterState, pending: Iterable[PodEntry]) -> Iterator[GroupReason]:
    """Pods that the same plugins reject have one reason; without plugins, the message counts."""
    found: dict[tuple[tuple[str, ...], str], list[tuple[str, str]]] = {}
    for entry in pending:
        message = why_pending(state, entry) or _before_attempt(state, entry)
        plugins = rejecting_plugins(state, entry.info.key)
        same = plugins, "" if plugins else message
        found.setdefault(same, []).append((entry.info.name, message))
    for (plugins, _), pods in sorted(found.items(), key=lambda item: -len(item[1])):
        [(message, _)] = Counter(message for _, message in pods).most_common(1)
        examples = tuple(sorted(name for name, _ in pods)[:_EXAMPLES])
        yield GroupReason(message, plugins, len(pods), examples)


def _before_attempt(state: ClusterState, entry: PodEntry) -> str:
    where = pod_state(state, entry.info.key)
    if where == AWAITS_SESSION:
        return "waits for its first batch session"
    return f"waits for its first attempt in the {where} queue" if where != "inFlight" else where


def _sentence(
    gang: GangSummary | None, states: Counter[str], reasons: tuple[GroupReason, ...], ended: int
) -> str:
    total, bound = states.total(), states[PlacementState.BOUND.value]
    if not total:
        return f"All {ended} pods were deleted or have finished." if ended else "It has no pods."
    pending = sum(reason.pods for reason in reasons)
    verb = "is" if bound == 1 else "are"
    head = f"{bound} of {total} pods {verb} bound"
    if bound == total:
        head = f"All {total} pods are bound" if total > 1 else "Its only pod is bound"
    if gang is not None:
        head = f"{_gang_text(gang)}: {head[0].lower()}{head[1:]}, {gang.minimum} are required"
    if gang is not None and gang.phase is GangPhase.NO_POD_GROUP:
        head = f"Its PodGroup does not exist: {bound} of {total} pods {verb} bound"
    if not pending:
        return f"{head}."
    held = [reason for reason in reasons if reason.plugins != (GANG_SCHEDULING,)]
    most = (held or reasons)[0]
    which = f"{most.pods} of {pending} pending pods"
    if most.pods == pending:
        which = "the pending pod" if pending == 1 else f"all {pending} pending pods"
    others = sum(reason.pods for reason in reasons if reason not in held) if held else 0
    rest = f"; {others} {'waits' if others == 1 else 'wait'} for the gang" if others else ""
    # What follows the first sentence is about preemption.
    return f"{head}; {which}: {most.reason.split('. ')[0].rstrip('.')}{rest}."


_GANG_TEXTS = {
    GangPhase.COMPLETE: "The gang is complete",
    GangPhase.WAITING: "The gang waits for members",
    GangPhase.PENDING: "The gang is pending",
    GangPhase.TOO_FEW_PODS: "The gang has too few pods",
    GangPhase.NO_POD_GROUP: "The PodGroup does not exist",
}


def _gang_text(gang: GangSummary) -> str:
    return _GANG_TEXTS[gang.phase]


def _session_pod(state: ClusterState, found: GroupExplanation) -> PodName | None:
    """A pod of the group that batch sessions serve."""
    for member in found.members:
        entry = state.pods[f"{member.namespace}/{member.name}"]
        if entry.info.pod.spec.scheduler_name in state.sessions:
            return PodName(member.namespace, member.name)
    return None


async def with_session(
    journal: JournalStore, load: PluginLoader, found: GroupExplanation, pod: PodName | None
) -> GroupExplanation:
    """The explanation with the last session of the group's ``pod``, if pods have no node."""
    if pod is None or not found.reasons:
        return found
    try:
        job = await explain_job(journal, pod, load, last_seq=found.seq)
    except AuditError:
        return found
    return msgspec.structs.replace(found, job=job)


def read_group(
    state: ClusterState, seq: int, group: GroupName, ended: int = 0
) -> tuple[GroupExplanation, PodName | None]:
    """The explanation, and a pod for :func:`with_session`. Raises :class:`AuditError`."""
    found = explained(state, seq, group, ended)
    return found, _session_pod(state, found)


async def explain_group(
    journal: JournalStore, load: PluginLoader, group: GroupName, at_ns: int | None = None
) -> GroupExplanation:
    """The group at a time; None for the journal's end.

    Raises :class:`AuditError` for an unknown group, :class:`~asched.journal.errors.JournalError`,
    ProfileError.
    """
    state, seq = await state_at(journal, load, at_ns)
    return await with_session(journal, load, *read_group(state, seq, group))
