"""Bindings that the API server has answered for and the watch has not shown yet.

Both tell of the same binding, mostly within the same milliseconds, and one record is enough: that of the
watch, which tells more. So an answer that comes first waits for it, for a turn of the engine.
"""

from __future__ import annotations

from asched.state.cluster import ClusterState
from asched.state.records import Bound


class UnshownBindings:
    """Answers that wait for the watch."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._answers: list[Bound] = []

    def __bool__(self) -> bool:
        return bool(self._answers)

    def answered(self, answer: Bound) -> None:
        """It waits, unless the watch has shown the binding already."""
        if not self._is_shown(answer):
            self._answers.append(answer)

    def overdue(self) -> list[Bound]:
        """Those that waited and were not shown meanwhile; they wait no longer."""
        answers, self._answers = self._answers, []
        return [answer for answer in answers if not self._is_shown(answer)]

    def _is_shown(self, answer: Bound) -> bool:
        entry = self._cluster.entry(answer.key, answer.uid)
        return entry is not None and entry.info.pod.node_name == entry.node == answer.node
