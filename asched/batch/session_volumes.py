"""Reserves volumes for the tasks of a session through the built-in VolumeBinding plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterAllPlugin, PreFilterPlugin, ReservePlugin
from asched.framework.pod_info import PodInfo
from asched.framework.session_objects import Task
from asched.framework.volumes import mounts_claims
from asched.state.cluster import ClusterState
from asched.state.records import Reservation
from asched.state.sessions import VOLUME_BINDING


class VolumeClaims:
    """Reserves and binds volumes. Both methods return an error message, empty for success; this
    base class always succeeds."""

    def reserve(self, task: Task, node: str) -> str:
        return ""

    def bind(self, task: Task) -> str:
        return ""


class _Reserved(NamedTuple):
    pod: PodInfo
    node: str
    reservation: dict[str, Any]


class SessionVolumes(VolumeClaims):
    """Reserves volumes on the state.

    The plugin keeps the reservations until :meth:`undo`, so that no two tasks get the same volume.
    The fold repeats those of bound pods. Volumes are bound by an effect after the session.
    """

    def __init__(self, cluster: ClusterState, scheduler_name: str) -> None:
        self._cluster = cluster
        self._scheduler_name = scheduler_name
        self._reserved: dict[str, _Reserved] = {}

    def reserve(self, task: Task, node: str) -> str:
        pod = task.info
        if not mounts_claims(pod.pod):
            return ""
        self._unreserve(pod.uid)
        plugin, state, nodes = self._plugin(), CycleState(), self._cluster.nodes
        row = nodes.row_of(node)
        assert isinstance(plugin, PreFilterPlugin)
        assert isinstance(plugin, FilterAllPlugin)
        prepared = plugin.pre_filter(state, pod, nodes).status
        if prepared.is_skip:
            return ""
        if not prepared.is_success or row is None:
            return prepared.message or f'node "{node}" not found'
        target = nodes.take(np.array([row], np.intp))
        rejection = plugin.filter_all(state, pod, target).status(0)
        if rejection is not None:
            return rejection.message
        result = plugin.reserve(state, pod, node)
        if not result.status.is_success:
            return result.status.message
        if result.reservation is not None:
            # The same form that a replay reads from the journal.
            reservation: dict[str, Any] = msgspec.json.decode(
                msgspec.json.encode(result.reservation)
            )
            plugin.on_reserved(pod, node, reservation)
            self._reserved[pod.uid] = _Reserved(pod, node, reservation)
        return ""

    @property
    def reservations(self) -> Mapping[tuple[str, str], tuple[Reservation, ...]]:
        """By pod uid and node."""
        return {
            (uid, reserved.node): (Reservation(VOLUME_BINDING, reserved.reservation),)
            for uid, reserved in self._reserved.items()
        }

    def undo(self) -> None:
        """Drops all reservations from the plugin."""
        for uid in [*self._reserved]:
            self._unreserve(uid)

    def _unreserve(self, uid: str) -> None:
        reserved = self._reserved.pop(uid, None)
        if reserved is not None:
            self._plugin().unreserve(reserved.pod, reserved.node, reserved.reservation)

    def _plugin(self) -> ReservePlugin:
        profile = self._cluster.plugin_context.binding_profile(self._scheduler_name)
        if profile.missing:
            raise LookupError(f"volumes cannot be bound: {profile.missing}")
        [plugin] = profile.reserve
        return plugin
