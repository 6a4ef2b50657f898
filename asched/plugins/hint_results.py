"""Results of PreFilter and queueing hints that several plugins return."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from asched.framework.events import QueueingHint, QueueingHintFn
from asched.framework.interface import PreFilterResult
from asched.framework.status import SUCCESS, Status
from asched.model.meta import Object
from asched.model.pod import Pod

PROCEED = PreFilterResult(SUCCESS)
SKIP = PreFilterResult(Status.skip())

ObjectT = TypeVar("ObjectT", bound=Object)


def queue_if(helps: bool) -> QueueingHint:
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def own_pod_updated(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
    return queue_if(new is not None and new.uid == pod.uid)


def added_or_changed(kind: type[ObjectT], part: Callable[[ObjectT], object]) -> QueueingHintFn:
    """Queue if an object of the kind is added, or this part of it changes."""

    def hint(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        if not isinstance(new, kind):
            return QueueingHint.SKIP
        return queue_if(not isinstance(old, kind) or part(old) != part(new))

    return hint
