"""One attempt laid open: what every plugin says of every node.

:mod:`asched.cycle.attempt` looks for a decision and leaves out what does not matter to it; here
each filter is run on its own on every node, and scores are kept even where a single feasible node
needs none. Pure: it reads the state, and what it runs is what the attempt runs.
"""

from __future__ import annotations

from enum import Enum

import msgspec
import numpy as np

from asched.cycle.attempt import Attempt, PluginScores, Screening
from asched.cycle.decide import NO_NODES, fit_message, left_alone
from asched.cycle.extenders import ExtenderRound
from asched.cycle.post_filter import post_filter
from asched.cycle.shape_cache import ShapeCache
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import EXTENDER, AttemptPausedError, ExtenderFailureError
from asched.framework.runtime.plugin_calls import PluginFailure, filter_nodes, held_back
from asched.framework.runtime.profile import Profile
from asched.framework.status import Status
from asched.state.cluster import ClusterState
from asched.state.records import ExtenderAsked


class AttemptOutcome(Enum):
    """How an attempt ends, in the words of kube-scheduler's tests."""

    SCHEDULED = "scheduled"
    """At least one node is feasible (Reserve and Permit are not asked here)."""
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    """A PreEnqueue plugin holds the pod back: nothing else is run."""
    SKIPPED = "skipped"
    """The pod is being deleted: never tried."""
    IGNORED = "ignored"
    """The pod is another scheduler's."""
    ERROR = "error"


class PreFilterInspection(msgspec.Struct, frozen=True):
    """The PreFilter phase."""

    rejections: dict[str, Status]
    """Plugin to status, of those that answered neither Success nor Skip."""
    skipped: tuple[str, ...]
    """Plugins whose Filter is not run, sorted."""
    node_names: tuple[str, ...] | None = None
    """The only nodes to look at, sorted; None for all. May name nodes that do not exist."""
    restricted_by: tuple[str, ...] = ()
    status: Status | None = None
    """The rejection that ended the phase, and with it the attempt."""


class FilterInspection(msgspec.Struct, frozen=True):
    """The Filter phase. What is not listed passes."""

    plugins: dict[str, dict[str, Status]]
    """Plugin to node to status: each filter on its own on every node, whatever the others say and
    without nominated pods."""
    nodes: dict[str, Status]
    """Node to the status that refuses it: of the first filter that fails, with the pods nominated
    to the node supposed there."""


class PluginScoring(msgspec.Struct, frozen=True):
    """One plugin's scores, aligned with :attr:`Inspection.feasible`."""

    weight: int
    raw: tuple[int, ...]
    normalized: tuple[int, ...]


class Inspection(msgspec.Struct, frozen=True):
    """All that an attempt finds."""

    outcome: AttemptOutcome
    nodes: tuple[str, ...] = ()
    """Every node of the cluster, sorted."""
    pre_enqueue: dict[str, Status] = {}
    pre_filter: PreFilterInspection | None = None
    filter: FilterInspection | None = None
    """None where PreFilter ended the attempt."""
    feasible: tuple[str, ...] = ()
    """Sorted."""
    nominated_node_used: bool = False
    """The pod's nominated node passed, so no other counts, though all were looked at."""
    score_skipped: tuple[str, ...] = ()
    """Plugins whose Score is not run, sorted."""
    scores: dict[str, PluginScoring] = {}
    total: tuple[int, ...] = ()
    """Sum of weighted normalised scores, aligned with :attr:`feasible`. What extenders add stands
    among :attr:`scores` under the name ``Extender``."""
    best: tuple[str, ...] = ()
    """The nodes with the highest total, sorted: any of them may be chosen."""
    message: str = ""
    """Why not: the text of the pod's ``PodScheduled=False`` condition."""
    awaits_extender: bool = False
    """An extender's answer is missing, so what is here is without it."""
    left_alone: Status | None = None
    """What turns the pod away while a plugin that its profile needs is not asked, as its circuit is
    open: then nobody is."""
    left_out: tuple[str, ...] = ()
    """Plugins that are not asked while their circuits are open, sorted."""
    failed_plugin: str = ""
    """The plugin whose failure is the outcome ``error``."""


def inspect(cluster: ClusterState, profile: Profile, pod: PodInfo) -> Inspection:
    """What an attempt for ``pod`` would find in ``cluster`` as it is. All nodes are looked at,
    whatever share the profile would be content with."""
    names = tuple(sorted(name for name in cluster.nodes.names if name))
    if pod.pod.spec.scheduler_name != profile.scheduler_name:
        return Inspection(AttemptOutcome.IGNORED, names)
    for plugin in profile.pre_enqueue:
        if held := held_back(plugin, pod):
            return Inspection(
                AttemptOutcome.GATED, names, pre_enqueue={plugin.name: held}, message=held.message
            )
    if pod.pod.terminating:
        return Inspection(AttemptOutcome.SKIPPED, names)
    circuits = cluster.circuits
    if plugin_name := circuits.blocking(profile):
        why = left_alone(circuits.circuit(profile.scheduler_name, plugin_name), plugin_name)
        refusal = Status.unschedulable(why).by(plugin_name)
        return Inspection(AttemptOutcome.UNSCHEDULABLE, names, message=why, left_alone=refusal)
    profile = circuits.in_force(profile)
    found = _tried(cluster, profile, pod, names)
    if not profile.left_out:
        return found
    return msgspec.structs.replace(found, left_out=tuple(sorted(profile.left_out)))


def _tried(
    cluster: ClusterState, profile: Profile, pod: PodInfo, names: tuple[str, ...]
) -> Inspection:
    if not names:
        return Inspection(AttemptOutcome.UNSCHEDULABLE, message=NO_NODES)
    try:
        return _Inspector(cluster, profile, pod, names).inspection()
    except PluginFailure as failure:
        return Inspection(
            AttemptOutcome.ERROR, names, message=str(failure), failed_plugin=failure.plugin
        )
    except ExtenderFailureError as failure:
        return Inspection(
            AttemptOutcome.ERROR, names, message=str(failure), failed_plugin=failure.plugin
        )


class _Inspector:
    def __init__(
        self, cluster: ClusterState, profile: Profile, pod: PodInfo, names: tuple[str, ...]
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._pod = pod
        self._names = names
        # A cache of its own: nothing that was computed before has a say.
        self._attempt = Attempt(cluster, profile, pod, ShapeCache(cluster.nodes))
        queued = cluster.queue.find(pod.key)
        number = 0 if queued is None else queued.attempts + 1
        self._consultation = ExtenderRound(cluster, profile, pod, number)
        self._awaits_extender = False

    def inspection(self) -> Inspection:
        nominated = self._cluster.nominator.node_of(self._pod.key)
        screening = self._screen(nominated)
        if screening.nominated_used and not screening.count:
            screening = self._screen("")
        pre_filter = _pre_filter(self._profile, screening)
        filters = None
        if screening.rejected is None:
            filters = FilterInspection(self._each_filter(screening), self._verdicts(screening))
        if screening.count:
            return self._scheduled(screening, pre_filter, filters)
        post_filter_message = self._post_filter(screening)
        return Inspection(
            AttemptOutcome.UNSCHEDULABLE,
            self._names,
            pre_filter=pre_filter,
            filter=filters,
            message=fit_message(self._cluster, screening, post_filter_message),
            awaits_extender=self._awaits_extender,
        )

    def _screen(self, nominated: str) -> Screening:
        """What plugins, and extenders as far as they answered, leave."""
        screening = self._attempt.screen(
            nominated=nominated, share_of_nodes=False, every_reason=True
        )
        self._awaits_extender = self._consultation.filter(screening) is not None
        return screening

    def _post_filter(self, screening: Screening) -> str:
        self._consultation.offer_review(screening)
        # What a plugin says to held pods takes effect only if an attempt decides it.
        with self._cluster.permits.unheard():
            try:
                result, _ = post_filter(self._cluster, self._profile, self._pod, screening)
            except AttemptPausedError:
                self._awaits_extender = True
                return ""
        return result.status.message

    def _each_filter(self, screening: Screening) -> dict[str, dict[str, Status]]:
        table, found = self._cluster.nodes, {}
        alive = np.flatnonzero(table.alive).tolist()
        for plugin in self._profile.filter:
            if plugin.name in screening.state.skip_filter:
                continue
            verdicts = filter_nodes(plugin, screening.state, self._pod, table)
            refused = {}
            for row in alive:
                status = verdicts.status(row)
                if status is not None:
                    refused[table.names[row]] = status.by(plugin.name)
            if refused:
                found[plugin.name] = refused
        return found

    def _verdicts(self, screening: Screening) -> dict[str, Status]:
        table, found = self._cluster.nodes, {}
        for row in np.flatnonzero(table.alive & ~screening.findings.passing).tolist():
            status = screening.findings.status(row)
            if status is not None:
                found[table.names[row]] = status
        return found

    def _scheduled(
        self,
        screening: Screening,
        pre_filter: PreFilterInspection,
        filters: FilterInspection | None,
    ) -> Inspection:
        # Extenders are asked to score only where there is a choice.
        bonus = self._consultation.prioritize(screening) if screening.count > 1 else None
        scoring = self._attempt.score(screening)
        found = [self._cluster.nodes.names[row] for row in screening.rows.tolist()]
        order = sorted(range(len(found)), key=found.__getitem__)
        feasible = tuple(found[index] for index in order)
        if isinstance(bonus, ExtenderAsked):
            self._awaits_extender = True
        elif bonus is not None:
            extra = bonus[screening.rows]
            scoring.total = scoring.total + extra
            scoring.plugins.append(PluginScores(EXTENDER, 1, extra, extra))
        total = tuple(scoring.total[order].tolist())
        best = max(total)
        return Inspection(
            AttemptOutcome.SCHEDULED,
            self._names,
            pre_filter=pre_filter,
            filter=filters,
            feasible=feasible,
            nominated_node_used=screening.nominated_used,
            score_skipped=scoring.skipped,
            scores={
                scores.plugin: PluginScoring(
                    scores.weight,
                    tuple(scores.raw[order].tolist()),
                    tuple(scores.normalized[order].tolist()),
                )
                for scores in scoring.plugins
            },
            total=total,
            best=tuple(name for name, own in zip(feasible, total, strict=True) if own == best),
            awaits_extender=self._awaits_extender,
        )


def _pre_filter(profile: Profile, screening: Screening) -> PreFilterInspection:
    rejected, names = screening.rejected, screening.node_names
    # Restrictions that leave no node together are the phase's own rejection, no plugin's.
    own_doing = names is not None and not names
    ran = [plugin.name for plugin in profile.pre_filter]
    if rejected is not None:
        # Answers that like pods share are known of plugins whose turn did not come, too.
        ran = ran[: ran.index(rejected.plugin)]
    return PreFilterInspection(
        rejections={rejected.plugin: rejected} if rejected and not own_doing else {},
        skipped=tuple(sorted(screening.state.skip_filter.intersection(ran))),
        node_names=None if names is None else tuple(sorted(names)),
        restricted_by=screening.narrowed_by,
        status=rejected,
    )
