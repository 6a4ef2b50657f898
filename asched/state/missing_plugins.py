"""Recorded profiles with plugins that are not installed.

A journal outlives the plugins that wrote it, and folding it must not need them, because their
decisions are recorded. Only the configuration that makes the next decision has to be complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asched.framework.binding import BindingClient
from asched.framework.interface import BindPlugin, ExtensionPoint, QueueSortPlugin
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import AttachableHandle, PluginWeight, Profile, ProfileSpec
from asched.framework.status import Status


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
