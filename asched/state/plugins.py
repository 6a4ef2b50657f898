"""Plugins in the state: calls that maintain Reserve plugins, and stand-ins for missing plugins.

The fold continues after an exception of a Reserve plugin, because the same record is folded again
at every start; the errors are kept for the daemon to report. It needs no plugins that wrote the
journal: their decisions are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from asched.framework.binding import BindingClient
from asched.framework.interface import (
    BindPlugin,
    ExtensionPoint,
    QueueSortPlugin,
    ReservePlugin,
    SettlingReservePlugin,
)
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    describe_raised,
    failure_reason,
)
from asched.framework.runtime.profile import AttachableHandle, PluginWeight, Profile, ProfileSpec
from asched.framework.status import Status
from asched.model.meta import Object
from asched.state.records import Assigned

if TYPE_CHECKING:
    from asched.state.cluster import PodEntry

_MAX_ERRORS = 100


class ReservePluginError(NamedTuple):
    """An exception of a Reserve plugin."""

    plugin: str
    pod: str
    error: str


class SettledPod(NamedTuple):
    """A bound pod whose reservation by a plugin ends."""

    key: str
    plugin: str


class ReservePluginCalls:
    """Notifies Reserve plugins of the outcome of assignments. Only the fold calls it."""

    def __init__(self) -> None:
        self.errors: list[ReservePluginError] = []
        """The latest errors, oldest first."""
        self.error_count = 0
        self.unfinished: dict[str, PodEntry] = {}
        """Deleted pods with a binding cycle that has not ended, by UID. Their reservations last as
        long: what PreBind wrote may still arrive."""

    def reserved(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """The pod was assigned."""
        for plugin in _plugins(profile):
            self._call(plugin, plugin.on_reserved, pod, assignment)

    def unreserved(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """The assignment was undone."""
        for plugin in reversed(_plugins(profile)):
            self._call(plugin, plugin.unreserve, pod, assignment)

    def bound(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """The pod is bound as assigned."""
        for plugin in _plugins(profile):
            self._call(plugin, plugin.on_bound, pod, assignment)

    def deleted(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """A pod that was bound as assigned was deleted."""
        for plugin in reversed(_plugins(profile)):
            self._call(plugin, plugin.on_deleted, pod, assignment)

    def settled_by(self, profiles: Iterable[Profile], changed: Object) -> Iterator[SettledPod]:
        """The bound pods whose reservations end with this change."""
        for profile in profiles:
            for plugin in profile.reserve:
                if isinstance(plugin, SettlingReservePlugin):
                    for key in self._settled_by(plugin, changed):
                        yield SettledPod(key, plugin.name)

    def _settled_by(self, plugin: SettlingReservePlugin, changed: Object) -> Collection[str]:
        outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "Reserve")
        try:
            return plugin.settled_by(changed)
        except BaseException as error:  # noqa: BLE001  plugin code must not stop the fold
            self._note(plugin.name, changed.key, "settled_by", error)
            return ()
        finally:
            CURRENT_CALL.call = outer

    def _call(
        self,
        plugin: ReservePlugin,
        method: Callable[[PodInfo, str, Any], None],
        pod: PodInfo,
        assignment: Assigned,
    ) -> None:
        value: dict[str, Any] | None = None
        for reservation in assignment.reservations:
            if reservation.plugin == plugin.name:
                value = reservation.value
        if value is None and plugin.only_own_reservations:
            return
        outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "Reserve")
        try:
            method(pod, assignment.node, value)
        except BaseException as error:  # noqa: BLE001  plugin code must not stop the fold
            self._note(plugin.name, pod.key, method.__name__, error)
        finally:
            CURRENT_CALL.call = outer

    def _note(self, plugin: str, key: str, method: str, error: BaseException) -> None:
        FAILURES.note(plugin, "Reserve", failure_reason(error))
        text = f"{method}: {describe_raised(plugin, 'Reserve', error)}"
        self.errors.append(ReservePluginError(plugin, key, text))
        self.error_count += 1
        del self.errors[:-_MAX_ERRORS]


def _plugins(profile: Profile | None) -> tuple[ReservePlugin, ...]:
    """Empty if the pod's profile was removed."""
    return profile.reserve if profile is not None else ()


class ArrivalOrder(QueueSortPlugin):
    """Orders pods by time of arrival."""

    name: ClassVar[str] = "ArrivalOrder"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp_ns < second.timestamp_ns

    def sort_key(self, pod: QueuedPod) -> Any:
        return pod.timestamp_ns


class NoBinder(BindPlugin):
    """Fails every binding: an incomplete profile makes no decisions."""

    name: ClassVar[str] = "NoBinder"
    api_version: ClassVar[int] = 1

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return Status.error("the pod's profile is not complete")


_SUBSTITUTES = {plugin.name: plugin for plugin in (ArrivalOrder, NoBinder)}


def incomplete_profile(spec: ProfileSpec, handle: AttachableHandle, reason: str) -> Profile:
    """A substitute for a profile that cannot be built for that reason."""
    bare = ProfileSpec(
        spec.scheduler_name,
        {
            ExtensionPoint.QUEUE_SORT.field: (PluginWeight(ArrivalOrder.name),),
            ExtensionPoint.BIND.field: (PluginWeight(NoBinder.name),),
        },
    )
    profile = Profile(bare, _SUBSTITUTES.__getitem__, handle)
    profile.spec, profile.missing = spec, reason
    return profile


def missing_plugin(profiles: Mapping[str, Profile]) -> str:
    """What the first incomplete profile lacks; empty if all are complete.

    Under an incomplete profile no plugin gates pods and no hint requeues them, so queues differ
    from those with the plugin. Such a state may be inspected, but not stored as a checkpoint.
    """
    return next((profile.missing for profile in profiles.values() if profile.missing), "")
