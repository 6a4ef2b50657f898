"""Profiles of the past whose plugins are not installed any more.

A journal outlives the plugins that it was written with. Folding it must not need them: what they
decided is recorded. Only the configuration that decides next has to be complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asched.framework.binding import BindingClient
from asched.framework.interface import BindPlugin, ExtensionPoint, QueueSortPlugin
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import OwnHandle, PluginWeight, Profile, ProfileSpec
from asched.framework.status import Status


class ArrivalOrder(QueueSortPlugin):
    """First come, first served."""

    name: ClassVar[str] = "ArrivalOrder"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp_ns < second.timestamp_ns

    def sort_key(self, pod: QueuedPod) -> Any:
        return pod.timestamp_ns


class NoBinder(BindPlugin):
    """Binds nothing: a profile that is not complete never decides."""

    name: ClassVar[str] = "NoBinder"
    api_version: ClassVar[int] = 1

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return Status.error("the pod's profile is not complete")


_STAND_INS = {plugin.name: plugin for plugin in (ArrivalOrder, NoBinder)}


def incomplete_profile(spec: ProfileSpec, handle: OwnHandle, reason: str) -> Profile:
    """What stands for a profile that cannot be built; ``reason`` says why it cannot."""
    bare = ProfileSpec(
        spec.scheduler_name,
        {
            ExtensionPoint.QUEUE_SORT.field: (PluginWeight(ArrivalOrder.name),),
            ExtensionPoint.BIND.field: (PluginWeight(NoBinder.name),),
        },
    )
    profile = Profile(bare, _STAND_INS.__getitem__, handle)
    profile.spec, profile.missing = spec, reason
    return profile


def why_incomplete(profiles: Mapping[str, Profile]) -> str:
    """What the first profile that is not complete lacks; empty where all of them are.

    Queues under such a profile are not those of who has the plugin: nobody gates a pod, no hint
    wakes one. So the state is good enough to look at, and not to be kept for others.
    """
    return next((profile.missing for profile in profiles.values() if profile.missing), "")
