"""One pass over the members: each is tried on the state with the earlier ones assumed.

As in kube-scheduler there is no backtracking: a member that does not fit is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from asched.cycle.attempt import Attempt
from asched.cycle.attempt_decisions import long_search_of, rejection, reserve_and_permit
from asched.cycle.feasible_nodes import NO_NODES, FeasibleNodes, fit_message
from asched.cycle.node_selection import BestNodes, select_node
from asched.cycle.post_filter import PostFilterOutcome, run_post_filter
from asched.cycle.precheck import refusal
from asched.cycle.shape_cache import ShapeCache
from asched.framework.interface import PostFilterResult
from asched.framework.nodes import BoolColumn
from asched.framework.placements import NO_PREEMPTION
from asched.framework.pod_info import QueuedPod
from asched.framework.runtime.observation import to_printable
from asched.framework.runtime.plugin_calls import PluginFailure
from asched.framework.runtime.profile import Profile
from asched.framework.status import Status
from asched.group_cycle.like_members import LikeKey, LikeMembers
from asched.group_cycle.members import CycleMembers, quorum_is_met
from asched.group_cycle.trial import Trial
from asched.group_cycle.work import NO_SEARCH, CycleWork
from asched.state import records as r
from asched.state.cluster import ClusterState

NodeChooser = Callable[[BestNodes, QueuedPod], int]
"""Returns the row of one of the best nodes."""

_encode = msgspec.json.Encoder().encode
_replace = msgspec.structs.replace


class Preemption(Enum):
    """What becomes of the victims that PostFilter plugins find."""

    NONE = "none"
    """PostFilter plugins do not run."""
    IGNORED = "ignored"
    """They run for their reasons; a member that needs victims does not fit."""
    ASSUMED = "assumed"
    """A member that needs victims counts as placed on its nominated node."""


class PassMode(NamedTuple):
    """How members are tried."""

    preemption: Preemption
    no_preemption: str = ""
    """Why no member may preempt; empty if they may."""
    within: BoolColumn | None = None
    """By row, the nodes of the placement; None for all nodes."""


@dataclass(slots=True)
class MemberResult:
    """What the pass found for one member."""

    queued: QueuedPod
    decision: r.Assigned | r.Rejected | r.AttemptFailed
    node: str = ""
    """Where it counts as placed; empty if it does not fit."""
    preempts: bool = False
    """It counts as placed because victims make room for it; the decision names them."""
    found_node: bool = False
    """Filters left a node. If it does not fit, Reserve or Permit rejected it, which may depend on
    more than what like members share."""
    found_victims: bool = False
    """PostFilter found victims for it, whether or not they are used."""
    plain_message: str = ""
    """The message without the words of PostFilter."""

    @property
    def fits(self) -> bool:
        return bool(self.node)


@dataclass(slots=True)
class PassResult:
    """What one pass found."""

    members: list[MemberResult] = field(default_factory=list)
    feasible: bool = False
    """The minimum is reached, perhaps with victims."""
    error: r.AttemptFailed | None = None
    """The failed attempt that ended the pass."""

    @property
    def needs_victims(self) -> bool:
        """Whether it is feasible only once victims are gone."""
        return any(member.preempts for member in self.members)

    @property
    def placed(self) -> int:
        return sum(member.fits for member in self.members)


class MemberPass:
    """Tries the members of one group under one profile."""

    def __init__(
        self,
        cluster: ClusterState,
        profile: Profile,
        cache: ShapeCache,
        choose: NodeChooser | None = None,
    ) -> None:
        """``choose`` breaks ties between nodes; by default as for single pods."""
        self._cluster = cluster
        self._profile = profile
        self._cache = cache
        self._choose = choose or self._choose_by_seed
        self._shares_rejections = all(plugin.rejects_like_pods for plugin in profile.post_filter)
        self.trial = Trial(cluster, profile)
        self.like_members = LikeMembers(cluster, profile, cache)
        self.work: CycleWork | None = None
        """Counts and limits what the passes do; None for no limit."""

    def _choose_by_seed(self, best: BestNodes, queued: QueuedPod) -> int:
        cluster, number = self._cluster, queued.attempts + 1
        return select_node(best, cluster.nodes, cluster.engine.seed, queued.info.uid, number)

    def run(self, members: CycleMembers, mode: PassMode) -> PassResult:
        """Try all members. The state is the same afterwards.

        As in kube-scheduler, the nominations of these members are no pods: each is placed in this
        pass, on its nominated node first. If the group does not fit, other members may have taken
        that room, and it is tried with them.
        """
        nominator = self._cluster.nominator
        nominated = {pod.key: nominator.node_of(pod.key) for pod in members.group.pending}
        result = self._run(members, mode, nominated, counted=False)
        if result.feasible or result.error is not None or not any(nominated.values()):
            return result
        if self.work is not None and not self.work.allows(1, members.pending):
            return result
        again = self._run(members, mode, nominated, counted=True)
        return again if again.feasible else result

    def _run(
        self, members: CycleMembers, mode: PassMode, nominated: Mapping[str, str], *, counted: bool
    ) -> PassResult:
        """``nominated``: by pod key, the node that is tried first; empty for none. ``counted``:
        nominations of members that are not placed yet count as pods."""
        if self.work is not None:
            self.work.begin_pass(members.pending)
        result = PassResult()
        rejections: dict[LikeKey, MemberResult] = {}
        removed = self.trial.removed
        with_node = sum(member.pod.uid not in removed for member in members.group.running)
        with self.trial.members():
            if not counted:
                for key in nominated:
                    self._cluster.nominator.withdraw(key)
            for queued in members.pending:
                first_choice = nominated[queued.info.key]
                known = self._known_rejection(queued, rejections) if not first_choice else None
                if known is not None:
                    result.members.append(_same_rejection(known, queued))
                    continue
                tried = self._try(queued, mode, first_choice)
                result.members.append(tried)
                if isinstance(tried.decision, r.AttemptFailed):
                    result.feasible, result.error = False, tried.decision
                    break
                if not tried.node:
                    if not first_choice and not tried.found_victims:
                        self._keep(tried, rejections)
                    continue
                rejections.clear()
                assigned = tried.decision if isinstance(tried.decision, r.Assigned) else None
                self.trial.assume(queued.info, tried.node, assigned)
                with_node += 1
                result.feasible = result.feasible or quorum_is_met(members.rules, with_node)
        return result

    def _known_rejection(
        self, queued: QueuedPod, rejections: dict[LikeKey, MemberResult]
    ) -> MemberResult | None:
        """The rejection of a like member since the last one that was assumed."""
        if not rejections:
            return None
        like = self._like_key(queued)
        return None if like is None else rejections.get(like)

    def _keep(self, tried: MemberResult, rejections: dict[LikeKey, MemberResult]) -> None:
        like = None if tried.found_node else self._like_key(tried.queued)
        if like is not None:
            rejections[like] = tried

    def _like_key(self, queued: QueuedPod) -> LikeKey | None:
        """Equal for members that are rejected alike; None if each has to be tried. Some member was
        tried since the last change."""
        return self.like_members.key(queued.info) if self._shares_rejections else None

    def _try(self, queued: QueuedPod, mode: PassMode, nominated: str) -> MemberResult:
        info, number = queued.info, queued.attempts + 1
        try:
            result = self._attempt(queued, mode, nominated)
            _encode(result.decision)
            return result
        except PluginFailure as failure:
            steps = long_search_of(failure)
            failed = r.AttemptFailed(
                info.key, info.uid, number, failure.plugin, str(failure), long_search=steps
            )
        except AssertionError:
            raise  # the state is inconsistent
        except Exception as error:  # noqa: BLE001  an invalid answer
            why = f"a plugin's answer is invalid: {type(error).__name__}: {to_printable(error)}"
            failed = r.AttemptFailed(info.key, info.uid, number, "", why)
        return MemberResult(queued, failed, plain_message=failed.message)

    def _attempt(self, queued: QueuedPod, mode: PassMode, nominated: str) -> MemberResult:
        cluster, info, number = self._cluster, queued.info, queued.attempts + 1
        refused = refusal(cluster, info)
        if refused is not None or not cluster.nodes.cluster_size:
            status = refused or Status.unschedulable(NO_NODES)
            plugins = (status.plugin,) if status.plugin else ()
            rejected = r.Rejected(info.key, info.uid, number, status.message, plugins)
            return MemberResult(queued, rejected, plain_message=status.message)
        attempt = Attempt(cluster, self._profile, info, self._cache, mode.within)
        found = attempt.find_feasible_nodes(nominated=nominated, limit_nodes=False)
        if not found.count:
            return self._without_node(queued, found, mode)
        best = BestNodes(0, found.feasible, 1) if found.count == 1 else attempt.best(found)
        node = cluster.nodes.names[self._choose(best, queued)]
        decision: r.Assigned | r.Rejected = r.Assigned(
            info.key,
            info.uid,
            node,
            number,
            feasible_nodes=found.count,
            score=best.score,
            ties=best.count,
            long_search=found.long_search,
        )
        assert isinstance(decision, r.Assigned)
        if self._profile.reserve or self._profile.permit:
            decision = reserve_and_permit(cluster, self._profile, info, found, decision)
        if isinstance(decision, r.Assigned):
            return MemberResult(queued, decision, node, found_node=True)
        return MemberResult(queued, decision, found_node=True, plain_message=decision.message)

    def _without_node(
        self, queued: QueuedPod, found: FeasibleNodes, mode: PassMode
    ) -> MemberResult:
        plain = fit_message(self._cluster, found, "")
        if mode.preemption is Preemption.NONE:
            outcome = PostFilterOutcome(PostFilterResult(Status.unschedulable()))
            decision = rejection(self._cluster, queued, found, outcome)
            return MemberResult(queued, decision, plain_message=plain)
        no_preemption = mode.no_preemption
        if not no_preemption and self.work is not None and not self.work.may_search(queued.info):
            no_preemption = NO_SEARCH
        if no_preemption:
            found.state.write(NO_PREEMPTION, no_preemption)
        answers = self._cluster.waiting_pods.answers
        outcome = run_post_filter(self._cluster, self._profile, queued.info, found)
        preempts = outcome.result.status.is_success and bool(outcome.result.nominated_node)
        if not preempts:
            decision = rejection(self._cluster, queued, found, outcome)
            return MemberResult(queued, decision, plain_message=plain)
        if mode.preemption is Preemption.ASSUMED:
            decision = rejection(self._cluster, queued, found, outcome)
            node = decision.nominated_node or ""
            return MemberResult(
                queued, decision, node, preempts=True, found_victims=True, plain_message=plain
            )
        self._cluster.waiting_pods.reset_answers(answers)
        unused = PostFilterOutcome(PostFilterResult(Status.unschedulable()))
        decision = rejection(self._cluster, queued, found, unused)
        return MemberResult(queued, decision, found_victims=True, plain_message=plain)


def _same_rejection(known: MemberResult, queued: QueuedPod) -> MemberResult:
    """The result of a member that is rejected like another one."""
    info, number = queued.info, queued.attempts + 1
    decision = _replace(known.decision, key=info.key, uid=info.uid, attempt=number)
    return MemberResult(queued, decision, plain_message=known.plain_message)
