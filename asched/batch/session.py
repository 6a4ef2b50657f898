"""One session, from opening to closing."""

from __future__ import annotations

from asched.batch.registry import SessionRegistry
from asched.batch.trace import Trace
from asched.framework.sessions import SessionOutcome, SessionSpec
from asched.state.cluster import ClusterState


def hold_session(
    cluster: ClusterState,
    spec: SessionSpec,
    registry: SessionRegistry,
    number: int,
    *,
    trace: Trace | None = None,
) -> SessionOutcome:
    """What a session of ``spec`` on the cluster as it is comes to. Changes nothing.

    ``number`` counts the profile's sessions and, with the cluster's seed, stands for chance. Where
    ``trace`` is given, it is told how each decision came about; the outcome is the same.
    """
    raise NotImplementedError
