"""All plugins that are asked outside decisions: finds who is to answer a question, and makes a record of
what it says."""

from __future__ import annotations

import sys
from functools import partial

import anyio
import msgspec
import numpy as np

from asched.config.settings import PluginLimits
from asched.daemon.plugin_host import messages as m
from asched.daemon.plugin_host.clients import (
    Answer,
    InProcess,
    InWorker,
    PendingCall,
    PluginClient,
    WorkerTimeoutError,
)
from asched.framework.binding import Isolation
from asched.framework.interface import Plugin
from asched.framework.nodes import BoolColumn, RowArray
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.observation import FAILURES, printable, reason_of
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import ExternalPlugin, PluginLoader, parse_arguments
from asched.state.cluster import ClusterState, ProfileHandle
from asched.state.inquiries import PendingEvaluation, packed, present_rows
from asched.state.records import (
    ExtenderAnswer,
    ExtenderAsked,
    ExtenderFailed,
    ExtenderFiltered,
    ExtenderPrioritized,
    ExtenderRefusal,
)


class ExternalPlugins:
    """Asks the plugins of the profiles as they now are. To be closed."""

    def __init__(self, cluster: ClusterState, load: PluginLoader, limits: PluginLimits) -> None:
        self._cluster = cluster
        self._load = load
        self.limits = limits
        self._answerers: dict[tuple[str, str], tuple[bytes, PluginClient]] = {}

    async def aclose(self) -> None:
        """End all workers."""
        answerers, self._answerers = self._answerers, {}
        for _, answerer in answerers.values():
            await answerer.close()

    async def answer(
        self, index: int, question: ExtenderAsked, pod: PodInfo
    ) -> ExtenderAnswer | None:
        """Put a question to the outsider of that number, which is a plugin. None where nobody waits
        for the answer any more."""
        plugin = self._cluster.outsiders[index]
        assert isinstance(plugin, ExternalPlugin)
        about = (question.key, question.uid, question.attempt, index)
        put = _Put(self._cluster, index, question)
        try:
            answerer = await self._answerer(plugin)
            asked = PendingCall(question.verb, pod, question.attempt, put.rows)
            answer = await answerer.answer(asked)
        except (PluginFailure, WorkerTimeoutError) as failure:
            return ExtenderFailed(*about, question.verb, str(failure))
        return None if answer is None else _recorded(about, put, answer)

    # -- who answers --------------------------------------------------------------------------

    async def _answerer(self, plugin: ExternalPlugin) -> PluginClient:
        """Raises :class:`WorkerTimeoutError` for a plugin that cannot be made."""
        key = (plugin.scheduler_name, plugin.name)
        profile = self._cluster.profiles[plugin.scheduler_name]
        arguments = profile.spec.arguments.get(plugin.name)
        worker = self._runs_in_worker(plugin.name)
        made_for = msgspec.json.encode((arguments, worker))
        known = self._answerers.get(key)
        if known is not None and known[0] == made_for:
            return known[1]
        if known is not None:
            del self._answerers[key]
            await known[1].close()
        loaded = self._load(plugin.name)
        make = self._in_worker if worker else self._in_process
        answerer = make(loaded, plugin, arguments)
        self._answerers[key] = made_for, answerer
        return answerer

    def _runs_in_worker(self, name: str) -> bool:
        isolation = self.limits.isolation(name) or self._load(name).runs_in
        return isolation is Isolation.WORKER

    def _in_worker(
        self, loaded: type[Plugin], plugin: ExternalPlugin, arguments: dict[str, object] | None
    ) -> PluginClient:
        begin = m.Begin(
            plugin.name,
            loaded.__module__,
            loaded.__qualname__,
            arguments or {},
            plugin.scheduler_name,
            tuple(sys.path),
        )
        return InWorker(begin, self._cluster, partial(self.limits.limit_s, plugin.name))

    def _in_process(
        self, loaded: type[Plugin], plugin: ExternalPlugin, arguments: dict[str, object] | None
    ) -> PluginClient:
        handle = ProfileHandle(self._cluster, plugin.scheduler_name)
        handle.built(self._cluster.profiles[plugin.scheduler_name])
        try:
            made = loaded(parse_arguments(loaded, arguments), handle)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            FAILURES.note(plugin.name, "Init", reason_of(error))
            what = f"{type(error).__name__}: {printable(error)}"
            raise WorkerTimeoutError(f"plugin {plugin.name}: it cannot be made: {what}") from error
        return InProcess(made, self._cluster)


class _Put:
    """A question as it was put last: about those of its nodes that were still there."""

    def __init__(self, cluster: ClusterState, index: int, question: ExtenderAsked) -> None:
        self._cluster = cluster
        self._index = index
        self._question = question
        self.size = 0
        """How many nodes the question is about."""
        self.places: RowArray = np.zeros(0, np.intp)
        """Which of them were there."""

    def rows(self) -> RowArray | None:
        """Their rows now; None where nobody waits for the answer any more."""
        inquiry = self._inquiry()
        if inquiry is None:
            return None
        self.size = len(inquiry.rows)
        self.places = np.flatnonzero(present_rows(inquiry.rows))
        return inquiry.rows[self.places]

    def _inquiry(self) -> PendingEvaluation | None:
        question = self._question
        inquiry = self._cluster.inquiries.get(question.key)
        if inquiry is None or not inquiry.is_of(question.uid, question.attempt):
            return None
        if inquiry.verb is not question.verb or self._index not in inquiry.pending:
            return None
        return inquiry


def _recorded(about: tuple[str, str, int, int], put: _Put, answer: Answer) -> ExtenderAnswer:
    """The answer about the nodes that were there, as one about all that were asked about."""
    places, size = put.places, put.size
    if isinstance(answer, np.ndarray):
        scores = np.zeros(size, np.int64)
        scores[places] = answer
        return ExtenderPrioritized(*about, scores=tuple(scores.tolist()))

    def spread(mask: BoolColumn) -> BoolColumn:
        everywhere = np.zeros(size, np.bool_)
        everywhere[places] = mask
        return everywhere

    passed = np.ones(len(places), np.bool_)
    for refused in answer:
        passed &= ~refused.where
    # Evicting pods might help, but nobody could try it out: so none are.
    refusals = tuple(
        ExtenderRefusal(refused.message, packed(spread(refused.where)), unresolvable=True)
        for refused in answer
    )
    return ExtenderFiltered(*about, passed=packed(spread(passed)), refused=refusals)
