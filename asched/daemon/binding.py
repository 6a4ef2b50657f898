"""The binding cycle of one pod: PreBind, Bind, PostBind. Asynchronous, beside later decisions."""

from __future__ import annotations

import structlog

from asched.framework.interface import BindingClient
from asched.framework.pod_info import PodInfo
from asched.framework.profile import Profile
from asched.framework.status import SUCCESS, Code, Status
from asched.kube.timing import Backoff, Clock
from asched.kube.writers import Done, PodRef, PodWriter, Unknown
from asched.state.records import BindFailed, Bound

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PatientBinder:
    """The framework's :class:`BindingClient`. It answers only when the fate of a binding is known:
    a pod whose binding may have succeeded must not be placed elsewhere."""

    def __init__(self, writer: PodWriter, clock: Clock, backoff: Backoff) -> None:
        self._writer = writer
        self._clock = clock
        self._backoff = backoff

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        ref = PodRef(pod.namespace, pod.name, pod.uid)
        while True:
            outcome = await self._writer.bind(ref, node_name)
            if isinstance(outcome, Done):
                return SUCCESS
            if not isinstance(outcome, Unknown):
                return Status.error(outcome.message)
            log.warning("binding of unknown fate", pod=pod.key, error=outcome.message)
            await self._clock.sleep(self._backoff.next_s())


async def binding_cycle(
    profile: Profile, client: BindingClient, pod: PodInfo, node_name: str
) -> Bound | BindFailed:
    """Run the cycle and say how it ended. Never raises for what a plugin does."""
    try:
        status = await _bind(profile, client, pod, node_name)
    except Exception as error:
        # Third-party code runs here; whatever it raises fails this pod's binding and no more.
        log.exception("a plugin of the binding cycle raised", pod=pod.key)
        status = Status.error(f"{type(error).__name__}: {error}")
    if not status.is_success:
        return BindFailed(pod.key, pod.uid, node_name, status.code, status.plugin, status.message)
    for plugin in profile.post_bind:
        try:
            await plugin.post_bind(client, pod, node_name)
        except Exception:
            # The pod is bound, whatever a plugin that is merely told of it does.
            log.exception("a PostBind plugin raised", pod=pod.key, plugin=plugin.name)
    return Bound(pod.key, pod.uid, node_name)


async def _bind(profile: Profile, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
    for plugin in profile.pre_bind:
        status = await plugin.pre_bind(client, pod, node_name)
        if not status.is_success:
            return status.by(plugin.name)
    for binder in profile.bind:
        status = await binder.bind(client, pod, node_name)
        if status.code is not Code.SKIP:
            return status.by(binder.name)
    return Status.error("every bind plugin answered Skip")
