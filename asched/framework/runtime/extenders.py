"""Evaluators outside the decision: HTTP extenders, and plugins that are impure or run in a worker.

A decision is pure and calls none of them. It reads their recorded answers, and pauses if one is
missing. :mod:`asched.kube.extenders` makes the calls of extenders.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec

from asched.framework.cluster import PodRef
from asched.framework.cycle_state import StateKey
from asched.framework.nodes import MAX_NODE_SCORE
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status

EXTENDER: Final = "Extender"
"""The name under which all extenders appear among the plugins that rejected a pod, as in
kube-scheduler. Extenders register no events, so every event requeues such a pod."""

MAX_EXTENDER_SCORE: Final = 10
"""Extenders score 0 to 10 (``MaxExtenderPriority``)."""


class ExtenderVerb(Enum):
    """The calls to an extender that a decision depends on."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"


class ExtenderSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The recorded configuration of an extender, without certificates and passwords."""

    name: str
    """Its URL, without a password."""
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    managed_resources: tuple[str, ...] = ()
    """It handles only pods that request one of these; all pods if empty."""
    ignorable: bool = False

    reported_as: ClassVar[str] = EXTENDER
    """The plugin name under which its rejections and failures are reported."""
    score_scale: ClassVar[int] = MAX_NODE_SCORE // MAX_EXTENDER_SCORE
    """The factor that scales its scores to 0 to 100."""
    score_required: ClassVar[bool] = False
    """Whether a failure to score fails the attempt, instead of adding nothing."""

    def is_interested_in(self, pod: PodInfo) -> bool:
        """``IsInterested`` of kube-scheduler: requests and limits of all containers count."""
        if not self.managed_resources:
            return True
        managed = frozenset(self.managed_resources)
        spec = pod.pod.spec
        return any(
            not managed.isdisjoint(container.resources.requests)
            or not managed.isdisjoint(container.resources.limits)
            for container in (*spec.containers, *spec.init_containers)
        )


class ExternalPlugin(msgspec.Struct, frozen=True):
    """A plugin of one profile that is evaluated outside the decision, at Filter and Score."""

    name: str
    scheduler_name: str
    filters: bool
    scores: bool
    weight: int
    ignorable: bool
    preempt_verb: ClassVar[str] = ""
    score_scale: ClassVar[int] = 1

    @property
    def filter_verb(self) -> str:
        return "filter" if self.filters else ""

    @property
    def prioritize_verb(self) -> str:
        return "score" if self.scores else ""

    @property
    def reported_as(self) -> str:
        return self.name

    @property
    def score_required(self) -> bool:
        return not self.ignorable

    def is_interested_in(self, pod: PodInfo) -> bool:
        return pod.pod.spec.scheduler_name == self.scheduler_name


ExternalEvaluator = ExtenderSpec | ExternalPlugin
"""Verbs that are not used are empty."""


def redacted_url(url: str) -> str:
    """The URL without user and password, for logs and records."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], *parts[2:]))


def rejection_status(message: str, *, unresolvable: bool, by: str = EXTENDER) -> Status:
    """The status of a node that an extender rejected. The message may be empty."""
    reasons = (message,) if message else ()
    make = Status.unresolvable if unresolvable else Status.unschedulable
    return make(*reasons).by(by)


class PreemptionCandidate(msgspec.Struct, frozen=True, gc=False):
    """A node on which the pod fits after the victims are evicted."""

    node: str
    victims: tuple[PodRef, ...]
    pdb_violations: int = 0


class CandidateReview(Protocol):
    """Lets the extenders change preemption candidates (``callExtenders`` of kube-scheduler)."""

    def review(self, candidates: Sequence[PreemptionCandidate]) -> Sequence[PreemptionCandidate]:
        """The remaining candidates, in order, followed by those that extenders added.

        Raises :class:`AttemptPausedError` or :class:`ExtenderFailureError`. A PostFilter plugin
        must not catch them.
        """


CANDIDATE_REVIEW: Final[StateKey[CandidateReview]] = StateKey("Extender/preempt")
"""The review for PostFilter plugins. Absent if no extender handles preemption for the pod."""


class ExtenderInterruption(Exception):  # noqa: N818  not an error of the plugin it passes through
    """Raised through a plugin that called :class:`CandidateReview`."""


class AttemptPausedError(ExtenderInterruption):
    """The attempt needs an answer that is not recorded yet."""

    def __init__(self, extender: int, candidates: Sequence[PreemptionCandidate]) -> None:
        super().__init__(f"extender {extender} has not answered yet")
        self.extender = extender
        self.candidates = tuple(candidates)


class ExtenderFailureError(ExtenderInterruption):
    """An extender that is not ignorable failed, which fails the attempt."""

    def __init__(self, message: str, plugin: str = EXTENDER) -> None:
        super().__init__(message)
        self.plugin = plugin
