"""What happens by itself, whatever the scheduler does: the input of a simulation.

Times are nanoseconds since the Unix epoch. What follows from decisions (a pod is bound, runs, ends,
is evicted) is not in here: the simulation makes that.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from asched.model.pod import Pod
from asched.model.resources import AnyObject


class Happening(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Base of all that may happen; the tag ``type`` is the class name."""

    at_ns: int


class PodCreated(Happening, frozen=True):
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


class PodDeleted(Happening, frozen=True):
    """Somebody deleted a pod: it ends now, pending or running, and does not return."""

    key: str
    uid: str
    """That of :class:`PodCreated`, also where the pod has returned since under another one."""


class ObjectSet(Happening, frozen=True):
    """An object appeared or changed; it is now as given.

    Of a pod that is there this takes over labels and specification (a gate that was lifted, a
    changed label), not its node and status; of one that is not, nothing.
    """

    object: AnyObject


class ObjectRemoved(Happening, frozen=True):
    """An object other than a pod is gone. Pods on a node that went end with it."""

    kind: str
    key: str
    uid: str = ""


class NodeDrained(Happening, frozen=True):
    """A node is cordoned and its pods are evicted (``kubectl drain``)."""

    node: str


Event: TypeAlias = PodCreated | PodDeleted | ObjectSet | ObjectRemoved | NodeDrained


class Exogenous(msgspec.Struct, frozen=True):
    """A history of what happened by itself."""

    events: tuple[Event, ...]
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
