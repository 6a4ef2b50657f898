"""What happens by itself, whatever the scheduler does: the input of a simulation.

Times are nanoseconds since the Unix epoch. What follows from decisions (a pod is bound, runs, ends,
is evicted) is not in here: the simulation makes that.

What became of the pods: the result of a simulation, and the form of an observed history.

Everything else is derived from it: who was where at what time says how much was allocated, on each
node and in all. Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject


class TraceEventBase(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all that may happen; the tag ``type`` is the class name."""

    at_ns: int


class PodCreated(TraceEventBase, frozen=True):
    """A pod came to be.

    One with a node name is on that node already, and holds its room there from now on: it was there
    before, or is another scheduler's. While an older pod of the same key is there the new one has to
    wait for the name, as in the API server; it counts as created when it got it.
    """

    pod: Pod
    run_ns: int | None = None
    """How long it runs once it is bound (or from now on, if it is on a node already); None for ever."""
    returns: bool = True
    """A controller makes it anew if it is evicted, or its node goes: a pending pod of the same key
    with a uid of its own and what is left of its running time. False: it is lost."""


class PodDeleted(TraceEventBase, frozen=True):
    """Somebody deleted a pod: it ends now, pending or running, and does not return."""

    key: str
    uid: str
    """That of :class:`PodCreated`, also where the pod has returned since under another one."""


class ObjectSet(TraceEventBase, frozen=True):
    """An object appeared or changed; it is now as given.

    Of a pod that is there this takes over labels and specification (a gate that was lifted, a
    changed label), not its node and status; of one that is not, nothing.
    """

    object: AnyObject


class ObjectRemoved(TraceEventBase, frozen=True):
    """An object other than a pod is gone. Pods on a node that went end with it."""

    kind: str
    key: str
    uid: str = ""


class NodeDrained(TraceEventBase, frozen=True):
    """A node is cordoned and its pods are evicted (``kubectl drain``)."""

    node: str


TraceEvent: TypeAlias = PodCreated | PodDeleted | ObjectSet | ObjectRemoved | NodeDrained


class WorkloadTrace(msgspec.Struct, frozen=True):
    """A history of what happened by itself."""

    events: tuple[TraceEvent, ...]
    """In order of time. Those of the same time happen in the order given and are seen together."""
    begin_ns: int
    """When it begins; no event is earlier."""
    end_ns: int | None = None
    """Where it ends: the simulation looks no further. None: until nothing happens any more."""

    def __post_init__(self) -> None:
        """Raises ValueError for events out of order or before the beginning, and for a uid that is
        created twice."""
        last_ns, uids = self.begin_ns, set[str]()
        for event in self.events:
            if event.at_ns < last_ns:
                raise ValueError(f"an event at {event.at_ns} after one at {last_ns}")
            last_ns = event.at_ns
            if isinstance(event, PodCreated):
                uid = event.pod.metadata.uid
                if uid in uids:
                    raise ValueError(f"pod {event.pod.key} ({uid}) is created twice")
                uids.add(uid)
        if self.end_ns is not None and self.end_ns < self.begin_ns:
            raise ValueError(f"the period ends at {self.end_ns}, before it begins")


class EndReason(StrEnum):
    """Why a pod left its node, or ended."""

    FINISHED = "finished"
    """Its running time was over."""
    DELETED = "deleted"
    """Somebody deleted it."""
    PREEMPTED = "preempted"
    DRAINED = "drained"
    NODE_GONE = "node-gone"
    BIND_FAILED = "bind-failed"
    """It was not bound after all: its node was gone, or a Permit plugin turned it away."""


class PodPlacement(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A period in which a pod held room on a node."""

    node: str
    assigned_ns: int
    """When it was decided: its room is taken from here on. As ``bound_ns`` for a pod that was
    there already."""
    bound_ns: int | None = None
    """When it was bound; None where that did not happen."""
    ended_ns: int | None = None
    """When its room was free again; None where it is there still."""
    end: EndReason | None = None
    by: str = ""
    """The key of the pod that it was preempted for."""
    evicted_ns: int | None = None
    """When its eviction was decided; it stays for its grace period after that."""


class PodRun(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What became of one pod. One that was evicted and made anew by its controller goes on here."""

    pod: Pod
    """As it was created."""
    created_ns: int
    attempts: int = 0
    """Decisions made for it, whatever came out."""
    rejections: int = 0
    """Of these, how many found no node."""
    placements: tuple[PodPlacement, ...] = ()
    """In order of time; more than one only where it was evicted and came back, or a binding failed."""
    ended_ns: int | None = None
    """When it was gone for good; None where it is there still."""
    end: EndReason | None = None
    message: str = ""
    """Why it was rejected last, if it is pending at the end."""

    @property
    def key(self) -> str:
        return self.pod.key

    @property
    def uid(self) -> str:
        """The uid it was created with."""
        return self.pod.metadata.uid

    @property
    def node(self) -> str:
        """The node it was bound to first; empty where it never was."""
        return next((placement.node for placement in self.placements if placement.bound_ns is not None), "")

    @property
    def bound_ns(self) -> int | None:
        """When it was bound for the first time; None where it never was."""
        return next((s.bound_ns for s in self.placements if s.bound_ns is not None), None)

    def pending_ns(self, until_ns: int) -> int:
        """How long it waited to be bound in all, again after each eviction, up to ``until_ns``."""
        total, since_ns = 0, self.created_ns
        for placement in self.placements:
            if placement.bound_ns is None:
                continue
            total += placement.bound_ns - since_ns
            if placement.ended_ns is None:
                return total
            since_ns = placement.ended_ns
        return total + (until_ns if self.ended_ns is None else self.ended_ns) - since_ns


class NodeSpan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A period in which a node was as it is here."""

    node: Node
    from_ns: int
    to_ns: int | None = None
    """When it changed or went; None where it is so still."""


class Run(msgspec.Struct, frozen=True):
    """A whole run over a cluster, simulated or observed."""

    begin_ns: int
    end_ns: int
    pods: tuple[PodRun, ...]
    """In order of creation."""
    nodes: tuple[NodeSpan, ...]
    """In order of their beginning."""
