"""All that decides over one state, as one: pods one by one, and batch sessions.

The daemon, replay, time travel and simulation all decide through this, in the same order, so that
what one of them decided the others decide as well.
"""

from __future__ import annotations

from asched.batch.decide import SessionDecider
from asched.batch.registry import SessionRegistry
from asched.cycle.decide import AttemptObserver, Decider
from asched.framework.sessions import SessionOutcome
from asched.state.cluster import ClusterState
from asched.state.records import Decision


class AllDeciders:
    """A session that is due goes first: it is short beside a backlog that would keep it waiting."""

    def __init__(
        self,
        cluster: ClusterState,
        sessions: SessionRegistry | None = None,
        observer: AttemptObserver | None = None,
    ) -> None:
        """``sessions``: the actions and plugins of sessions, by default all that are installed.
        ``observer`` watches attempts; it changes none of them."""
        self._cluster = cluster
        self._pods = Decider(cluster, observer)
        source = SessionRegistry.discover if sessions is None else lambda: sessions
        self._sessions = SessionDecider(cluster, source)

    def next(self) -> tuple[Decision, ...]:
        """The next decisions, empty where there is nothing to decide now. All are to be folded
        before the next call."""
        if self._cluster.sessions and (decisions := self._sessions.next()):
            return decisions
        return self._pods.next()

    def next_timer_ns(self) -> int | None:
        """When there is something to decide by itself, nanoseconds since the epoch: a permit's time
        is up, a session is due. Only a decision moves it on."""
        cluster = self._cluster
        times = (
            cluster.permits.next_deadline_ns(),
            cluster.sessions.next_timer_ns(),
            cluster.circuits.next_timer_ns(),
        )
        return min((ns for ns in times if ns is not None), default=None)

    @property
    def last_session(self) -> SessionOutcome | None:
        """What the last session that was held here came to. For metrics."""
        return self._sessions.last
