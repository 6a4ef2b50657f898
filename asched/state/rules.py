"""The rules of the fold and of decisions that are not those of the first releases.

A journal is replayed under the rules that wrote it: :class:`~asched.state.records.EngineStarted` names
the newest one that the daemon knew, and from there on that one and all before it hold. Journals of
before this was recorded name none.

To change what is made of the same records, add a member at the end and ask
``state.rules >= Rules.THE_NEW_ONE`` where the two ways part. A member is never changed, moved or
removed once it was released. An older asched does not know it, and refuses the journal instead of
deciding something else. Mistakes that no decision shows need no rule.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Rules(IntEnum):
    """By number, since each holds together with all before it."""

    FIRST = 0
    """What holds where nothing was recorded."""
    NOMINATED_NODE_ALONE = 1
    """A pod whose nominated node will do asks filters about no other node with pods nominated to it, so
    that one that fails there does not fail the attempt (``evaluateNominatedNode``)."""
    GANGS_EVICT_TOGETHER = 2
    """A member of a gang evicts nobody where the gang would be incomplete all the same."""
    KEPT_ROOM_IS_TOLD = 3
    """Room that is kept for a nominated pod no longer is news to those whom it kept out."""
    SILENT_PLUGINS_HEAR_ALL = 4
    """Pods that a plugin rejected which is no ``EnqueueExtensions`` are woken by events of pods, nodes and
    storage; before, they waited for the flush."""
    SESSIONS_BACK_OFF = 5
    """A pod that could not be bound as a session decided is left alone for a while by the next ones."""
    ASKED_PODS_STAY_IN_FLIGHT = 6
    """A pod that changes while extenders are asked about it waits for their answers, as if it had not
    changed; before, it went to the active queue as a new one, and was tried beside that attempt."""
    AWAITED_PREEMPTORS_GO_ON = 7
    """A member of a gang for which room was made is tried without a backoff while Permit holds others of
    its gang."""
    TAKEN_FROM_PERMIT_IS_PLACED = 8
    """A pod that Permit held and somebody else bound counts as placed in its group; before, as held,
    until something else about it changed."""
    WHO_MADE_ROOM_IS_TRIED = 9
    """A held pod that another plugin than those that hold it turns away, as preemption does to make room,
    is tried again after a backoff; before, it waited for that plugin's events, which say nothing of what
    the pod needs."""
    SLEEPERS_ARE_AS_THEY_STAND = 10
    """Who of a gang is asleep follows from the state; before, also from when somebody had asked for it."""
    REVIEW_BEFORE_TIMEOUT = 11
    """A Permit plugin is asked once more about what it holds before that times out: the gang that was
    complete when the process before ended is let go. Before, all of its pods were turned away, and as none
    was left that would wake them they slept until the flush."""


LATEST_RULES = max(Rules)
"""What a daemon of this release follows and records."""
