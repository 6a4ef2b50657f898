"""Volumes for the tasks of one session: set aside as the session goes, by the built-in VolumeBinding.

What a session asks of volumes before it places a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterAllPlugin,
    PreFilterPlugin,
    ReservePlugin,
)
from asched.framework.pod_info import PodInfo
from asched.framework.session_objects import Task
from asched.framework.volumes import mounts_claims
from asched.state.cluster import ClusterState
from asched.state.records import Reservation
from asched.state.sessions import VOLUME_BINDING


class _Reserved(NamedTuple):
    pod: PodInfo
    node: str
    note: dict[str, Any]


class SessionVolumes:
    """The :class:`asched.batch.session_volumes.VolumeClaims` of a session on the state.

    What is set aside is in the plugin's books until :meth:`undo`, so that no two tasks get the same
    volume; the fold enters it again for those that are bound.
    """

    def __init__(self, cluster: ClusterState, scheduler_name: str) -> None:
        self._cluster = cluster
        self._scheduler_name = scheduler_name
        self._reserved: dict[str, _Reserved] = {}

    def reserve(self, task: Task, node: str) -> str:
        pod = task.info
        if not mounts_claims(pod.pod):
            return ""
        self._strike(pod.uid)
        plugin, state, nodes = self._plugin(), CycleState(), self._cluster.nodes
        row = nodes.row_of(node)
        assert isinstance(plugin, PreFilterPlugin)
        assert isinstance(plugin, FilterAllPlugin)
        prepared = plugin.pre_filter(state, pod, nodes).status
        if prepared.is_skip:
            return ""
        if not prepared.is_success or row is None:
            return prepared.message or f'node "{node}" not found'
        here = nodes.take(np.array([row], np.intp))
        refusal = plugin.filter_all(state, pod, here).status(0)
        if refusal is not None:
            return refusal.message
        result = plugin.reserve(state, pod, node)
        if not result.status.is_success:
            return result.status.message
        if result.note is not None:
            # As a replay will read it from the journal.
            note: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result.note))
            plugin.reserved(pod, node, note)
            self._reserved[pod.uid] = _Reserved(pod, node, note)
        return ""

    def bind(self, task: Task) -> str:
        """Binding itself is an effect; it cannot fail here."""
        return ""

    @property
    def reservations(self) -> Mapping[tuple[str, str], tuple[Reservation, ...]]:
        """What was set aside, by the pod's uid and its node."""
        return {
            (uid, reserved.node): (Reservation(VOLUME_BINDING, reserved.note),)
            for uid, reserved in self._reserved.items()
        }

    def undo(self) -> None:
        """Leave the books as they were."""
        for uid in [*self._reserved]:
            self._strike(uid)

    def _strike(self, uid: str) -> None:
        reserved = self._reserved.pop(uid, None)
        if reserved is not None:
            self._plugin().unreserve(reserved.pod, reserved.node, reserved.note)

    def _plugin(self) -> ReservePlugin:
        profile = self._cluster.binding_profile(self._scheduler_name)
        if profile.missing:
            raise LookupError(f"volumes cannot be bound: {profile.missing}")
        [plugin] = profile.reserve
        return plugin


class VolumeClaims(Protocol):
    """Both answer why it cannot be done, or nothing."""

    def reserve(self, task: Task, node: str) -> str:
        """Set the task's volumes aside on the node."""

    def bind(self, task: Task) -> str:
        """Bind what was set aside."""


class NoVolumes:
    """Whatever is asked can be had."""

    def reserve(self, task: Task, node: str) -> str:
        return ""

    def bind(self, task: Task) -> str:
        return ""
