"""nodeorder: which of the possible nodes is best."""

from __future__ import annotations

from typing import ClassVar, Protocol

from asched.batch.built_in_plugins import BuiltInScores, BuiltInWeights
from asched.batch.corrections import Correction
from asched.batch.kubernetes_1_16.priorities import Priorities
from asched.batch.open_session import OpenSession
from asched.framework.nodes import Int64Column, RowArray
from asched.framework.session_objects import Task
from asched.framework.session_plugins import NodeOrderPlugin, Session


class _Form(Protocol):
    def scores(self, task: Task, rows: RowArray) -> Int64Column: ...


class NodeOrder(NodeOrderPlugin):
    """The scores of asched's pod-by-pod profiles, 0 to 100 each; in compatibility mode those of
    Kubernetes 1.16, 0 to 10. Arguments ``leastrequested.weight``, ``mostrequested.weight``,
    ``nodeaffinity.weight``, ``podaffinity.weight`` and ``balancedresource.weight``."""

    name: ClassVar[str] = "nodeorder"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        assert isinstance(session, OpenSession)
        weights = BuiltInWeights.of(self.arguments)
        self._form: _Form
        if session.corrects(Correction.REAL_PLACES):
            self._form = BuiltInScores(session.handle, session.table, weights)
        else:
            jobs = session.jobs.values()
            self._form = _Scores116(Priorities(session.nodes, session.node_books, jobs, weights))

    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        return self._form.scores(task, rows)


class _Scores116:
    def __init__(self, priorities: Priorities) -> None:
        self._priorities = priorities

    def scores(self, task: Task, rows: RowArray) -> Int64Column:
        return self._priorities.scores(task.info, rows)
