"""HTTP extenders as decisions see them: who they are, and what preemption may ask of them.

An extender (``KubeSchedulerConfiguration.extenders``) is a service outside that filters, scores,
binds or reviews victims. Decisions are pure, so they never call one: what an extender answered is
a record like any other observation, and a decision that needs an answer which is not there yet
says so. Calling is :mod:`asched.kube.extenders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec

from asched.framework.cycle_state import StateKey
from asched.framework.interface import Victim
from asched.framework.nodes import MAX_NODE_SCORE
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import ExtenderInterruption
from asched.framework.status import Status

EXTENDER: Final = "Extender"
"""What stands for all extenders among the plugins that rejected a pod, as in kube-scheduler. They
cannot say what may change their mind, so every event wakes a pod that one of them rejected."""

MAX_EXTENDER_SCORE: Final = 10
"""Extenders score 0 to 10 (``MaxExtenderPriority``)."""


class ExtenderVerb(Enum):
    """What is asked while a decision is made (binding comes after it)."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"


class ExtenderSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What decisions depend on of an extender: the part of its configuration that is recorded.

    Neither certificates nor passwords are in it.
    """

    name: str
    """Its URL, without a password."""
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    managed_resources: tuple[str, ...] = ()
    """It is interested only in pods that ask for one of these; in all where there are none."""
    ignorable: bool = False

    @property
    def speaks_as(self) -> str:
        return EXTENDER

    @property
    def score_scale(self) -> int:
        return MAX_NODE_SCORE // MAX_EXTENDER_SCORE

    @property
    def must_score(self) -> bool:
        return False

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


class ExternalEvaluator(Protocol):
    """Who is asked outside decisions: an HTTP extender, or a plugin that is not asked as part of
    one (:class:`~asched.framework.runtime.profile.ExternalPlugin`)."""

    @property
    def name(self) -> str: ...

    @property
    def filter_verb(self) -> str:
        """Empty where it does not filter; and so for the others."""

    @property
    def prioritize_verb(self) -> str: ...

    @property
    def preempt_verb(self) -> str: ...

    @property
    def weight(self) -> int: ...

    @property
    def score_scale(self) -> int:
        """What makes its scores 0 to 100."""

    @property
    def must_score(self) -> bool:
        """Whether an attempt fails with its scores; others then merely add nothing."""

    @property
    def ignorable(self) -> bool: ...

    @property
    def speaks_as(self) -> str:
        """Who is said to have refused, and to have failed: the name of a plugin, or EXTENDER."""

    def is_interested_in(self, pod: PodInfo) -> bool: ...


def shown_url(url: str) -> str:
    """The URL as it may be logged and recorded: without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# -- preemption -----------------------------------------------------------------------------------


class PreemptionCandidate(msgspec.Struct, frozen=True, gc=False):
    """A node on which room can be made, and who would have to go."""

    node: str
    victims: tuple[Victim, ...]
    pdb_violations: int = 0


class CandidateReview(Protocol):
    """The extenders' say in preemption (``callExtenders`` of kube-scheduler)."""

    def review(self, candidates: Sequence[PreemptionCandidate]) -> Sequence[PreemptionCandidate]:
        """The candidates that the extenders leave, with the victims that they choose; in order of
        ``candidates``, others after them.

        It may raise :class:`AttemptPausedError` or :class:`ExtenderFailureError`, which a PostFilter
        plugin lets pass: the framework knows what they mean.
        """


CANDIDATE_REVIEW: Final[StateKey[CandidateReview]] = StateKey("Extender/preempt")
"""Where a PostFilter plugin finds the review. Absent where no extender has a say about the pod."""


class AttemptPausedError(ExtenderInterruption):
    """An answer must be had first; the attempt goes on when it is there."""

    def __init__(self, extender: int, candidates: Sequence[PreemptionCandidate]) -> None:
        super().__init__(f"extender {extender} has not answered yet")
        self.extender = extender
        """Its position among the extenders."""
        self.candidates = tuple(candidates)


class ExtenderFailureError(ExtenderInterruption):
    """An extender that may not be ignored failed: the attempt ends with its words."""

    def __init__(self, message: str, plugin: str = EXTENDER) -> None:
        super().__init__(message)
        self.plugin = plugin
        """Who is said to have failed."""


def refusal(message: str, *, unresolvable: bool, by: str = EXTENDER) -> Status:
    """The status of a node that an extender refused. It may do so without a word."""
    reasons = (message,) if message else ()
    make = Status.unresolvable if unresolvable else Status.unschedulable
    return make(*reasons).by(by)
