"""Records of batch sessions. As all records they are listed in :mod:`asched.state.records`."""

from __future__ import annotations

import msgspec

from asched.framework.cluster import Victim
from asched.framework.sessions import (
    ActionCounts,
    EvictionReason,
    IgnoredJob,
    PodGroupPhase,
    SessionSpec,
)
from asched.state.stored_form import Record

# -- observations -----------------------------------------------------------------------------


class SessionsLoaded(Record):
    """The profiles that batch sessions serve from here on, in place of those before."""

    sessions: tuple[SessionSpec, ...]


class PodGroupStatusWritten(Record):
    """The API server has the status that was decided for a PodGroup (or the PodGroup is gone)."""

    kind: str
    group: str
    uid: str


class PodGroupStatusWriteFailed(Record):
    """The API server refused the status of a PodGroup."""

    kind: str
    group: str
    uid: str
    message: str = ""


# -- decisions --------------------------------------------------------------------------------


class SessionExecuted(Record):
    """A batch session was held. The decisions that came of it follow, in the same batch."""

    scheduler_name: str
    number: int
    """Sessions of a scheduler name are counted from the start of the journal."""
    actions: tuple[ActionCounts, ...] = ()
    """What each did, in the order in which they ran; without those that did nothing."""
    ignored_jobs: tuple[IgnoredJob, ...] = ()
    """Jobs that were not admitted to the session."""
    error: str = ""
    """Why it came to nothing: a plugin or an action that is missing or that raised."""


class EvictionDecided(Record):
    """A session evicts a pod so that another one gets its room."""

    key: str
    uid: str
    node: str
    session: int
    reason: EvictionReason
    preemptor: Victim
    """The pod that gets the room."""
    scheduler_name: str = ""
    """Whose session it was."""


class DecidedGroupCondition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A condition of a PodGroup as it is to be written."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transition_id: str = ""
    """The session that set it; empty for one that stays as it is."""


class PodGroupStatusDecided(Record):
    """A session gives a PodGroup another status."""

    kind: str
    """The name of its type: kinds of several API groups are called PodGroup."""
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
    """What its Warning Unschedulable says; empty for none."""
    scheduler_name: str = ""
