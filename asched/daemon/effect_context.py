"""What every kind of effect works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asched.daemon.inbox import Outcome
from asched.daemon.lanes import Lanes
from asched.daemon.pauses import Pauses
from asched.kube.timing import Backoff, Clock
from asched.state.cluster import ClusterState


class EffectContext(NamedTuple):
    """Of one daemon: all its effects share it."""

    cluster: ClusterState
    lanes: Lanes
    """Where they wait for what was begun before on the same pod."""
    pauses: Pauses
    """What they wait in before they try again."""
    backoff: Callable[[], Backoff]
    """Paces the retries of one effect."""
    report: Callable[[Outcome], None]
    """Takes what an effect came to."""
    clock: Clock
