"""nodeorder: scores the feasible nodes."""

from __future__ import annotations

from typing import ClassVar

from asched.batch.built_in_plugins import BuiltInScores, NodeOrderWeights
from asched.batch.corrections import Correction
from asched.batch.kubernetes_1_16 import LegacyScores
from asched.batch.open_session import OpenSession
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.session_objects import Task
from asched.framework.session_plugins import NodeOrderPlugin, Session


class NodeOrder(NodeOrderPlugin):
    """The scores of asched's pod-by-pod profiles, from 0 to 100 each. Compatibility mode uses those
    of Kubernetes 1.16, from 0 to 10. Arguments: ``leastrequested.weight``,
    ``mostrequested.weight``, ``nodeaffinity.weight``, ``podaffinity.weight`` and
    ``balancedresource.weight``."""

    name: ClassVar[str] = "nodeorder"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        assert isinstance(session, OpenSession)
        weights = NodeOrderWeights.of(self.arguments)
        self._scores: BuiltInScores | LegacyScores
        if session.corrects(Correction.REAL_PLACES):
            self._scores = BuiltInScores(session.handle, session.table, weights)
        else:
            jobs = session.jobs.values()
            self._scores = LegacyScores(session.nodes, session.session_nodes, jobs, weights)

    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        return self._scores.scores(task, rows)
