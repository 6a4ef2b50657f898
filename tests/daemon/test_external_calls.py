"""Calls of external evaluators that outlast their configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio

from asched.daemon.effects.external_calls import ExternalCallHandler
from asched.daemon.effects.per_pod_queue import EffectContext, EffectServices
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderVerb, ExternalPlugin
from asched.state.cluster import ClusterState
from asched.state.records import ExtenderAnswer, ExtenderCallFailed, ExtenderCallRequested
from asched.testing.builders import pod


class _SlowPlugins:
    """External plugins that fail once the test allows it."""

    def __init__(self) -> None:
        self.called, self.release = anyio.Event(), anyio.Event()

    async def answer(
        self, index: int, request: ExtenderCallRequested, pod: PodInfo
    ) -> ExtenderAnswer:
        self.called.set()
        await self.release.wait()
        about = (request.key, request.uid, request.attempt, index)
        return ExtenderCallFailed(*about, request.verb, "no answer within 5 s")


async def test_failure_of_plugin_that_a_reload_removed_is_dropped() -> None:
    """Without extenders in either configuration."""
    cluster, plugins, reported = ClusterState(), _SlowPlugins(), list[Any]()
    chooser = ExternalPlugin(
        name="NodeChooser",
        scheduler_name="choosing",
        filters=True,
        scores=False,
        weight=1,
        ignorable=False,
    )
    cluster.pending_evaluations.configure((), [chooser])
    async with anyio.create_task_group() as tasks:
        services = SimpleNamespace(extenders=(), tasks=tasks, plugins=plugins)
        unused = cast(Any, None)
        handler = ExternalCallHandler(
            EffectContext(cluster, unused, unused, reported.append, cast(EffectServices, services))
        )
        info = PodInfo(pod("p"))
        request = ExtenderCallRequested(info.key, info.uid, 1, ExtenderVerb.FILTER, (0,))
        handler.call(request, info)
        await plugins.called.wait()
        cluster.pending_evaluations.configure((), ())
        handler.use_extenders(())
        plugins.release.set()
    assert reported == []
