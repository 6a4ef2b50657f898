"""Record types of batch sessions, a part of :mod:`asched.state.records`."""

from __future__ import annotations

import msgspec

from asched.framework.cluster import PodRef
from asched.framework.sessions import (
    ActionCounts,
    EvictionReason,
    IgnoredJob,
    PodGroupPhase,
    SessionSpec,
)
from asched.state.stored_form import PodRecord, Record

# -- observations -----------------------------------------------------------------------------


class SessionsLoaded(Record):
    """Replaces the profiles that batch sessions serve."""

    sessions: tuple[SessionSpec, ...]


class PodGroupStatusWritten(Record):
    """The decided status of a PodGroup was written, or the PodGroup was deleted."""

    kind: str
    group: str
    uid: str


class PodGroupStatusWriteFailed(Record):
    """The status of a PodGroup could not be written."""

    kind: str
    group: str
    uid: str
    message: str = ""


# -- decisions --------------------------------------------------------------------------------


class SessionExecuted(Record):
    """A batch session ran. Its decisions follow in the same batch."""

    scheduler_name: str
    number: int
    """Counted by scheduler name from the start of the journal."""
    actions: tuple[ActionCounts, ...] = ()
    """Counts of each action that did something, in order."""
    ignored_jobs: tuple[IgnoredJob, ...] = ()
    """Jobs that were not part of the session."""
    error: str = ""
    """Why it failed: a plugin or action is missing or raised."""


class EvictionDecided(PodRecord):
    """A session evicts a pod in favour of another one."""

    node: str
    session: int
    reason: EvictionReason
    preemptor: PodRef
    scheduler_name: str


class DecidedGroupCondition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A condition of a PodGroup to be written."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transition_id: str = ""
    """The session that set it; empty for an unchanged one."""


class PodGroupStatusDecided(Record):
    """The status of a PodGroup changes."""

    kind: str
    """The type name: several API groups have a kind PodGroup."""
    group: str
    """``namespace/name``."""
    uid: str
    session: int
    phase: PodGroupPhase
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[DecidedGroupCondition, ...] = ()
    event: str = ""
    """The message of its Warning event Unschedulable; empty for none."""
    scheduler_name: str = ""
