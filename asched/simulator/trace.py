"""Input and result of a simulation.

A :class:`WorkloadTrace` contains the events that do not depend on the scheduler. Bindings, running
and evictions follow from decisions and are simulated. A :class:`WorkloadRun` is the result of a
simulation or an observed history; utilization and all other measures derive from it.

Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import AnyObject


class TraceEventBase(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of trace events; the tag ``type`` is the class name."""

    at_ns: int


class PodCreated(TraceEventBase, frozen=True):
    """A pod is created.

    A pod with a node name is already bound to that node, by an earlier or another scheduler. While
    another pod has the same key, the creation waits, and counts from when the name is free.
    """

    pod: Pod
    run_ns: int | None = None
    """Running time from its binding, or from its creation if already bound; None is unlimited."""
    recreated: bool = True
    """Whether a controller recreates the pod after an eviction or the removal of its node.

    It is then pending with the same key, a new uid and the remaining running time.
    """
    terminations_ns: tuple[int | None, ...] = ()
    """For each eviction from a node in order, the time until the pod has ended. None, and any later
    eviction, takes the grace period."""


class PodDeleted(TraceEventBase, frozen=True):
    """A pod is deleted by its owner: it ends now and is not recreated."""

    key: str
    uid: str
    """The uid in :class:`PodCreated`, also if the pod was recreated since."""


class ObjectSet(TraceEventBase, frozen=True):
    """An object is added or updated.

    Of an existing pod, labels and specification are updated, node and status are kept. Unknown
    pods are ignored.
    """

    object: AnyObject


class ObjectRemoved(TraceEventBase, frozen=True):
    """An object other than a pod is deleted. The pods of a deleted node end."""

    kind: str
    key: str
    uid: str = ""


class NodeDrained(TraceEventBase, frozen=True):
    """A node is cordoned and its pods are evicted (``kubectl drain``)."""

    node: str


TraceEvent: TypeAlias = PodCreated | PodDeleted | ObjectSet | ObjectRemoved | NodeDrained


class WorkloadTrace(msgspec.Struct, frozen=True):
    """The events of a simulation that do not depend on the scheduler."""

    events: tuple[TraceEvent, ...]
    """In order of time. Events of the same time are applied in this order and observed together."""
    begin_ns: int
    """Start of the trace; no event is earlier."""
    end_ns: int | None = None
    """End of the simulation; None ends it when no events are left."""
    claim_templates: tuple[ResourceClaim, ...] = ()
    """The claims of ResourceClaimTemplates, with the name of the template."""

    def __post_init__(self) -> None:
        """Raises ValueError for events out of order and for a uid that is created twice."""
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
    """Why a placement or a pod ended."""

    FINISHED = "finished"
    """Its running time was over."""
    DELETED = "deleted"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    NODE_GONE = "node-gone"
    BIND_FAILED = "bind-failed"
    """The node was gone, or a Permit plugin rejected the pod."""


class PodPlacement(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A period in which a pod used resources of a node."""

    node: str
    assigned_ns: int
    """Time of the decision, from which on its resources are in use."""
    bound_ns: int | None = None
    """Time of the binding; None if it was not bound."""
    ended_ns: int | None = None
    """When its resources were released; None if still in use."""
    end: EndReason | None = None
    by: str = ""
    evicted_ns: int | None = None
    """When its eviction was decided; the grace period follows."""


class PodRun(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The result of one pod, including the pods that its controller recreated."""

    pod: Pod
    created_ns: int
    attempts: int = 0
    rejections: int = 0
    """Attempts that found no node."""
    placements: tuple[PodPlacement, ...] = ()
    """In order of time; several after evictions or failed bindings."""
    ended_ns: int | None = None
    """When the pod ended; None if it still exists."""
    end: EndReason | None = None
    message: str = ""
    """Latest rejection message of a pod that is pending at the end."""

    @property
    def key(self) -> str:
        return self.pod.key

    @property
    def uid(self) -> str:
        """The uid of its creation."""
        return self.pod.metadata.uid

    @property
    def node(self) -> str:
        """The first node it was bound to; may be empty."""
        return next((p.node for p in self.placements if p.bound_ns is not None), "")

    @property
    def bound_ns(self) -> int | None:
        """Time of the first binding, if any."""
        return next((p.bound_ns for p in self.placements if p.bound_ns is not None), None)


class NodeSpan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A period in which a node did not change."""

    node: Node
    from_ns: int
    to_ns: int | None = None
    """When it changed or was removed; None if it still exists."""


class WorkloadRun(msgspec.Struct, frozen=True):
    """The pods and nodes of a cluster over a period, simulated or observed."""

    begin_ns: int
    end_ns: int
    pods: tuple[PodRun, ...]
    """In order of creation."""
    nodes: tuple[NodeSpan, ...]
    """In order of their start."""
