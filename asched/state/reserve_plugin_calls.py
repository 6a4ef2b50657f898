"""Calls of Reserve plugins from the fold.

A plugin that raises here has wrong records of its own. The fold continues, because the same record
is folded again at every start. The errors are kept for the daemon to report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from asched.framework.interface import ReservePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import (
    CURRENT_CALL,
    FAILURES,
    failure_reason,
    to_printable,
)
from asched.framework.runtime.profile import Profile
from asched.state.records import Assigned

_MAX_ERRORS = 100


class ReservePluginError(NamedTuple):
    """An exception of a Reserve plugin."""

    plugin: str
    pod: str
    error: str


class ReservePluginCalls:
    """Notifies Reserve plugins of the outcome of assignments. Only the fold calls it."""

    def __init__(self) -> None:
        self.errors: list[ReservePluginError] = []
        """The latest errors, oldest first."""
        self.error_count = 0

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
        outer, CURRENT_CALL.call = CURRENT_CALL.call, (plugin.name, "Reserve")
        try:
            method(pod, assignment.node, value)
        except BaseException as error:  # noqa: BLE001  plugin code must not stop the fold
            FAILURES.note(plugin.name, "Reserve", failure_reason(error))
            text = f"{method.__name__}: {type(error).__name__}: {to_printable(error)}"
            self.errors.append(ReservePluginError(plugin.name, pod.key, text))
            self.error_count += 1
            del self.errors[:-_MAX_ERRORS]
        finally:
            CURRENT_CALL.call = outer


def _plugins(profile: Profile | None) -> tuple[ReservePlugin, ...]:
    """Empty if the pod's profile was removed."""
    return profile.reserve if profile is not None else ()
