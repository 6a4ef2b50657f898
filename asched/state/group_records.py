"""Record types of group cycles, a part of :mod:`asched.state.records`."""

from __future__ import annotations

from enum import StrEnum

from asched.state.stored_form import Record


class GroupOutcome(StrEnum):
    """What became of a group in one cycle."""

    SCHEDULED = "scheduled"
    WAITING = "waiting"
    """It fits once victims are gone."""
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class PodGroupAttempted(Record):
    """A group cycle ran. The decisions about its members follow in the same batch.

    The cycle of a CompositePodGroup has a record of its own, then one for each PodGroup below it,
    each with the decisions about its members.
    """

    kind: str
    """The type name: several API groups have a kind PodGroup."""
    group: str
    """``namespace/name``."""
    uid: str
    scheduler_name: str
    outcome: GroupOutcome
    members: int
    """How many decisions about members follow."""
    placed: int = 0
    """The members that found a node."""
    message: str = ""
    placement: str = ""
    """The topology domain that was chosen, or that the messages of the members are about."""
    placements: int = 1
    """How many were tried."""
    steps: int = 0
    """What the cycle costs the namespace, in counted steps; 0 if it is free, and for a group
    below the root of a tree."""
    root: str = ""
    """Key of the CompositePodGroup with which the group was tried; empty if on its own."""
