"""Events of custom resources, for plugins that a change of one may help to place a pod."""

from __future__ import annotations

from collections.abc import Callable

from asched.framework.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
)
from asched.model.custom import CustomObject, CustomT
from asched.model.meta import Object
from asched.model.pod import Pod

CustomHint = Callable[[Pod, CustomT | None, CustomT | None], QueueingHint]
"""As :data:`asched.framework.events.QueueingHintFn`, with the plugin's own struct."""


def custom_event(
    kind: type[CustomT], action: ActionType, hint: CustomHint[CustomT] | None = None
) -> ClusterEventWithHint:
    """That something happened to a custom resource of this kind: ADD, DELETE or UPDATE_OTHER."""
    resource = kind.definition.name

    def of_kind(item: Object | None) -> CustomT | None:
        return item.typed(kind) if isinstance(item, CustomObject) else None

    def of_this_kind(pod: Pod, old: Object | None, new: Object | None) -> QueueingHint:
        item = old if new is None else new
        if not isinstance(item, CustomObject) or item.resource != resource:
            return QueueingHint.SKIP
        return QueueingHint.QUEUE if hint is None else hint(pod, of_kind(old), of_kind(new))

    return ClusterEventWithHint(ClusterEvent(EventResource.CUSTOM, action), of_this_kind)
