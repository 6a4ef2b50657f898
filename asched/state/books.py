"""The books of Reserve plugins, kept by the fold.

A plugin that raises here has wrong books, but must not stop the daemon: the record that it raised at
will be folded again at every start. What it raised is kept, for the daemon to report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from asched.framework.interface import ReservePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import CURRENT_CALL, FAILURES, to_printable, failure_reason
from asched.framework.runtime.profile import Profile
from asched.state.records import Assigned

_MOST_FAULTS = 100


class ReservePluginFault(NamedTuple):
    """A plugin raised while it was told of an assignment."""

    plugin: str
    pod: str
    what: str


class ReservePluginCalls:
    """Tells Reserve plugins what became of assignments."""

    def __init__(self) -> None:
        self.faults: list[ReservePluginFault] = []
        """The latest ones, oldest first."""
        self.fault_count = 0

    def enter(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """The pod was assigned."""
        for plugin in _plugins(profile):
            self._tell(plugin, plugin.on_reserved, pod, assignment)

    def strike(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """The pod will not get there after all."""
        for plugin in reversed(_plugins(profile)):
            self._tell(plugin, plugin.unreserve, pod, assignment)

    def close(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """The pod is bound as decided."""
        for plugin in _plugins(profile):
            self._tell(plugin, plugin.on_bound, pod, assignment)

    def release(self, profile: Profile | None, pod: PodInfo, assignment: Assigned) -> None:
        """A pod that was bound as decided is gone."""
        for plugin in reversed(_plugins(profile)):
            self._tell(plugin, plugin.on_deleted, pod, assignment)

    def _tell(
        self,
        plugin: ReservePlugin,
        method: Callable[[PodInfo, str, Any], None],
        pod: PodInfo,
        assignment: Assigned,
    ) -> None:
        note: dict[str, Any] | None = None
        for reservation in assignment.reservations:
            if reservation.plugin == plugin.name:
                note = reservation.note
        outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "Reserve")
        try:
            method(pod, assignment.node, note)
        except BaseException as error:  # noqa: BLE001  third-party code, and the fold has to go on
            FAILURES.note(plugin.name, "Reserve", failure_reason(error))
            what = f"{method.__name__}: {type(error).__name__}: {to_printable(error)}"
            self.faults.append(ReservePluginFault(plugin.name, pod.key, what))
            self.fault_count += 1
            del self.faults[:-_MOST_FAULTS]
        finally:
            CURRENT_CALL.call = outer


def _plugins(profile: Profile | None) -> tuple[ReservePlugin, ...]:
    """None where the pod's profile was taken out of the configuration meanwhile."""
    return profile.reserve if profile is not None else ()
