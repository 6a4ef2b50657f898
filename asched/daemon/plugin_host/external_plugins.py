"""Evaluates external plugins: picks the client of a plugin and turns its result into a record."""

from __future__ import annotations

import sys
from functools import partial

import anyio
import msgspec
import numpy as np

from asched.config.settings import PluginLimits
from asched.daemon.plugin_host import evaluation as m
from asched.daemon.plugin_host.clients import (
    Evaluation,
    InProcessClient,
    PendingCall,
    PluginClient,
    PluginEvaluationError,
    WorkerClient,
)
from asched.framework.binding import ExecutionMode
from asched.framework.interface import Plugin
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExternalPlugin
from asched.framework.runtime.observation import FAILURES, describe_raised, failure_reason
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import PluginLoader, parse_arguments
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.pending_evaluations import pack_mask, present_rows
from asched.state.records import (
    ExtenderAnswer,
    ExtenderCallFailed,
    ExtenderCallRequested,
    ExtenderFailedNodes,
    ExtenderFiltered,
    ExtenderPrioritized,
)


class ExternalPlugins:
    """Evaluates the external plugins of the current profiles. Must be closed."""

    def __init__(self, cluster: ClusterState, load: PluginLoader, limits: PluginLimits) -> None:
        self._cluster = cluster
        self._load = load
        self.limits = limits
        self._clients: dict[tuple[str, str], tuple[bytes, PluginClient]] = {}
        """By scheduler name and plugin; with the settings that the client was created for."""

    async def aclose(self) -> None:
        """End all workers."""
        clients, self._clients = self._clients, {}
        for _, client in clients.values():
            await client.close()

    async def answer(
        self, index: int, request: ExtenderCallRequested, pod: PodInfo
    ) -> ExtenderAnswer | None:
        """Evaluate the external evaluator at ``index``, which is a plugin. None once the result is
        no longer needed."""
        plugin = self._cluster.evaluators[index]
        assert isinstance(plugin, ExternalPlugin)
        about = (request.key, request.uid, request.attempt, index)
        nodes = _RequestNodes(self._cluster, index, request)
        try:
            client = await self._client(plugin)
            call = PendingCall(request.verb, pod, request.attempt, nodes.rows)
            result = await client.evaluate(call)
        except (PluginFailure, PluginEvaluationError) as failure:
            return ExtenderCallFailed(*about, request.verb, str(failure))
        return None if result is None else _record(about, nodes, result)

    async def _client(self, plugin: ExternalPlugin) -> PluginClient:
        """Raises :class:`PluginEvaluationError` if the plugin cannot be created."""
        key = (plugin.scheduler_name, plugin.name)
        profile = self._cluster.profiles[plugin.scheduler_name]
        arguments = profile.spec.arguments.get(plugin.name)
        loaded = self._load(plugin.name)
        mode = self.limits.isolation(plugin.name) or loaded.execution_mode
        settings = msgspec.json.encode((arguments, mode))
        if key in self._clients:
            created_for, client = self._clients[key]
            if created_for == settings:
                return client
            del self._clients[key]
            await client.close()
        create = self._in_worker if mode is ExecutionMode.WORKER else self._in_process
        client = create(loaded, plugin, arguments)
        self._clients[key] = settings, client
        return client

    def _in_worker(
        self, loaded: type[Plugin], plugin: ExternalPlugin, arguments: dict[str, object] | None
    ) -> PluginClient:
        start = m.StartPlugin(
            name=plugin.name,
            module=loaded.__module__,
            qualname=loaded.__qualname__,
            arguments=arguments or {},
            scheduler_name=plugin.scheduler_name,
            search_path=tuple(sys.path),
        )
        return WorkerClient(start, self._cluster, partial(self.limits.limit_s, plugin.name))

    def _in_process(
        self, loaded: type[Plugin], plugin: ExternalPlugin, arguments: dict[str, object] | None
    ) -> PluginClient:
        handle = ProfileHandle(self._cluster, plugin.scheduler_name)
        handle.attach(self._cluster.profiles[plugin.scheduler_name])
        try:
            created = loaded(parse_arguments(loaded, arguments), handle)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            FAILURES.note(plugin.name, "Init", failure_reason(error))
            what = describe_raised(plugin.name, "Init", error)
            raise PluginEvaluationError(
                f"plugin {plugin.name}: it cannot be created: {what}"
            ) from error
        return InProcessClient(created, self._cluster)


class _RequestNodes:
    """The nodes of a request; some may be removed before the plugin is evaluated."""

    def __init__(self, cluster: ClusterState, index: int, request: ExtenderCallRequested) -> None:
        self._cluster = cluster
        self._index = index
        self._request = request
        self.size = 0
        """How many nodes the request has."""
        self.places: RowArray = np.zeros(0, np.intp)
        """Positions of those that existed when :meth:`rows` was called."""

    def rows(self) -> RowArray | None:
        """The rows of the nodes that exist; None once the result is no longer needed."""
        request = self._request
        pending = self._cluster.pending_evaluations.get(request.key)
        if pending is None or not pending.is_of(request.uid, request.attempt):
            return None
        if pending.verb is not request.verb or self._index not in pending.pending:
            return None
        self.size = len(pending.rows)
        self.places = np.flatnonzero(present_rows(pending.rows))
        return pending.rows[self.places]


def _record(
    about: tuple[str, str, int, int], nodes: _RequestNodes, result: Evaluation
) -> ExtenderAnswer:
    """The record of a result, extended from the existing nodes to all nodes of the request."""
    places, size = nodes.places, nodes.size
    if isinstance(result, np.ndarray):
        scores = np.zeros(size, np.int64)
        scores[places] = result
        return ExtenderPrioritized(*about, scores=tuple(scores.tolist()))

    def spread(mask: BoolColumn) -> BoolColumn:
        everywhere = np.zeros(size, np.bool_)
        everywhere[places] = mask
        return everywhere

    passed = np.ones(len(places), np.bool_)
    for rejection in result:
        passed &= ~rejection.where
    # Preemption cannot be simulated with an external plugin, so its rejections are unresolvable.
    failed = tuple(
        ExtenderFailedNodes(
            rejection.message, pack_mask(spread(rejection.where)), unresolvable=True
        )
        for rejection in result
    )
    return ExtenderFiltered(*about, passed=pack_mask(spread(passed)), failed_nodes=failed)
