"""predicates: where a task may go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from asched.batch.built_in_plugins import BuiltInPredicates
from asched.batch.corrections import Correction
from asched.batch.kubernetes_1_16.predicates import LegacyPredicates as Predicates116
from asched.batch.open_session import OpenSession
from asched.framework.nodes import BoolColumn
from asched.framework.session_objects import Task
from asched.framework.session_plugins import PredicatePlugin, Session


class _Form(Protocol):
    def feasible(self, task: Task) -> BoolColumn: ...

    def refusals(self, task: Task) -> Mapping[str, int]: ...


class PredicatesSessionPlugin(PredicatePlugin):
    """The filters of asched's pod-by-pod profiles that do not look at room; in compatibility mode
    those of Kubernetes 1.16. Arguments ``predicate.MemoryPressureEnable``, ``DiskPressureEnable``
    and ``PIDPressureEnable`` turn nodes under such pressure away."""

    name: ClassVar[str] = "predicates"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        assert isinstance(session, OpenSession)
        self._form: _Form
        if session.corrects(Correction.REAL_PLACES):
            self._form = BuiltInPredicates(session.handle, self.arguments)
        else:
            self._form = Predicates116(
                session.handle,
                session.nodes,
                session.node_books,
                session.jobs.values(),
                self.arguments,
            )

    def predicate(self, task: Task) -> BoolColumn:
        return self._form.feasible(task)

    def refusals(self, task: Task) -> Mapping[str, int]:
        return self._form.refusals(task)
