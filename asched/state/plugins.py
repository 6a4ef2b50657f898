"""Plugins in the state: calls that maintain Reserve plugins, and stand-ins for missing plugins.

The fold continues after an exception of a Reserve plugin, because the same record is folded again
at every start; the errors are kept for the daemon to report. It needs no plugins that wrote the
journal: their decisions are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from asched.framework.binding import BindingClient
from asched.framework.interface import (
    BindPlugin,
    ChangedReservation,
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
from asched.model.quantity import NS_PER_S
from asched.state.records import Assigned, Reservation

if TYPE_CHECKING:
    from asched.state.cluster import PodEntry

_MAX_ERRORS = 100


class ReservePluginError(NamedTuple):
    """An exception of a Reserve plugin."""

    plugin: str
    pod: str
    error: str


SETTLE_LIMIT_NS = 660 * NS_PER_S
"""How long after its binding the watch may show what a pod reserved. Later it was never written,
or another client removed it. A silent watch is detected earlier."""


class SettledReservation(NamedTuple):
    """A reservation that a plugin changed."""

    pod_uid: str
    plugin: str
    changed: ChangedReservation


class ReservePluginCalls:
    """Notifies Reserve plugins of the outcome of assignments. Only the fold calls it."""

    def __init__(self) -> None:
        self.errors: list[ReservePluginError] = []
        """The latest errors, oldest first."""
        self.error_count = 0
        self.unfinished: dict[str, PodEntry] = {}
        """Deleted pods with a binding cycle that has not ended, by UID. Their reservations last as
        long: what PreBind wrote may still arrive."""
        self.unsettled: dict[str, int] = {}
        """When reservations of bound pods end at the latest, by UID of the pod, the next first."""
        self.deleted_unsettled: dict[str, PodEntry] = {}
        """Those of them that were deleted, by UID. What they reserved is in use until the API
        server shows it, and that what it shows ends."""

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

    def deleted(
        self, profile: Profile | None, pod: PodInfo, assignment: Assigned
    ) -> Sequence[Reservation]:
        """A pod that was bound as assigned was deleted. Returns the reservations that last until
        the API server shows them; their plugins are not called."""
        kept: list[ReservePlugin] = []
        if self.unsettled.get(pod.uid) is not None:
            kept += self._settling(profile, assignment)
        if not kept:
            self.unsettled.pop(pod.uid, None)
        for plugin in reversed(_plugins(profile)):
            if plugin not in kept:
                self._call(plugin, plugin.on_deleted, pod, assignment)
        names = {plugin.name for plugin in kept}
        return [one for one in assignment.reservations if one.plugin in names]

    def restored(self, profile: Profile | None, pod: PodInfo, reserved: Assigned) -> None:
        """For new instances of plugins: what a deleted pod reserved is in use."""
        for plugin in self._settling(profile, reserved):
            self._call(plugin, plugin.on_reserved, pod, reserved)
            self._call(plugin, plugin.on_bound, pod, reserved)

    def settle(self, profiles: Iterable[Profile], changed: Object) -> Iterator[SettledReservation]:
        """The reservations that this change changes or ends."""
        for profile in profiles:
            for plugin in profile.reserve:
                if isinstance(plugin, SettlingReservePlugin):
                    for uid, reservation in self._settle(plugin, changed).items():
                        yield SettledReservation(uid, plugin.name, reservation)

    def _settle(
        self, plugin: SettlingReservePlugin, changed: Object
    ) -> Mapping[str, ChangedReservation]:
        outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "Reserve")
        try:
            return plugin.settle(changed)
        except BaseException as error:  # noqa: BLE001  plugin code must not stop the fold
            self._note(plugin.name, changed.key, "settle", error)
            return {}
        finally:
            CURRENT_CALL.call = outer

    def expect(
        self, profile: Profile | None, pod: PodInfo, reserved: Assigned, now_ns: int
    ) -> None:
        """The pod was bound: the API server has to show soon what it reserved."""
        if self._settling(profile, reserved):
            self.unsettled[pod.uid] = now_ns + SETTLE_LIMIT_NS

    def next_timer_ns(self) -> int | None:
        """When the next call of :meth:`take_overdue` is due."""
        return next(iter(self.unsettled.values()), None)

    def take_overdue(self, now_ns: int) -> list[str]:
        """Remove and return the UIDs of pods with a reservation that was not settled in time."""
        overdue = [*takewhile(lambda uid: self.unsettled[uid] <= now_ns, self.unsettled)]
        for uid in overdue:
            del self.unsettled[uid]
        return overdue

    def give_up(self, profile: Profile | None, pod: PodInfo, reserved: Assigned) -> list[str]:
        """End the reservations that were not settled; returns the names of their plugins."""
        ended = self._settling(profile, reserved)
        for plugin in ended:
            try:
                plugin.give_up(pod.uid)
            except BaseException as error:  # noqa: BLE001  plugin code must not stop the fold
                self._note(plugin.name, pod.key, "give_up", error)
        return [plugin.name for plugin in ended]

    def _settling(self, profile: Profile | None, reserved: Assigned) -> list[SettlingReservePlugin]:
        """The plugins with reservations that the API server has to show."""
        names = {reservation.plugin for reservation in reserved.reservations}
        return [
            plugin
            for plugin in _plugins(profile)
            if isinstance(plugin, SettlingReservePlugin) and plugin.name in names
        ]

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
