"""How a profile deals with single plugins: what the operator's settings and the plugin itself say.

It is recorded with the profile, because decisions depend on it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from asched.framework.pod_info import PodInfo


class BreakerSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """When a plugin that fails again and again is left alone for a while."""

    failures: int
    """So many failures ..."""
    window_s: float
    """... within this time ..."""
    open_s: float
    """... and it is not asked for this long."""


class PluginPolicy(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is particular about one plugin of a profile."""

    name: str
    outside: bool = False
    """It is not asked as part of a decision: its answers are recorded, as an HTTP extender's are."""
    optional: bool = False
    """Pods are scheduled without it where it cannot be asked."""
    breaker: BreakerSpec | None = None


class OutsidePlugin(NamedTuple):
    """A plugin that is asked from outside decisions: of one profile, at Filter and Score.

    It has a say in attempts as an :class:`~asched.framework.extenders.ExtenderSpec` has.
    """

    name: str
    scheduler_name: str
    filters: bool
    scores: bool
    weight: int
    ignorable: bool

    @property
    def filter_verb(self) -> str:
        return "filter" if self.filters else ""

    @property
    def prioritize_verb(self) -> str:
        return "score" if self.scores else ""

    @property
    def preempt_verb(self) -> str:
        return ""

    @property
    def speaks_as(self) -> str:
        return self.name

    @property
    def score_scale(self) -> int:
        return 1

    @property
    def must_score(self) -> bool:
        return not self.ignorable

    def is_interested_in(self, pod: PodInfo) -> bool:
        return pod.pod.spec.scheduler_name == self.scheduler_name
