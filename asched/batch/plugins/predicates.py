"""predicates: filters the nodes by everything except resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from asched.batch.built_in_plugins import BuiltInPredicates
from asched.batch.corrections import Correction
from asched.batch.kubernetes_1_16 import LegacyPredicates
from asched.batch.open_session import OpenSession
from asched.framework.nodes import BoolColumn
from asched.framework.session_objects import Task
from asched.framework.session_plugins import PredicatePlugin, Session


class PredicatesSessionPlugin(PredicatePlugin):
    """The filters of asched's pod-by-pod profiles, without resources. Compatibility mode uses those
    of Kubernetes 1.16. Arguments ``predicate.MemoryPressureEnable``, ``DiskPressureEnable`` and
    ``PIDPressureEnable`` exclude nodes with that pressure."""

    name: ClassVar[str] = "predicates"

    def on_open(self, session: Session) -> None:
        super().on_open(session)
        assert isinstance(session, OpenSession)
        self._predicates: BuiltInPredicates | LegacyPredicates
        if session.corrects(Correction.REAL_PLACES):
            self._predicates = BuiltInPredicates(session.handle, self.arguments)
        else:
            self._predicates = LegacyPredicates(
                session.handle,
                session.nodes,
                session.session_nodes,
                session.jobs.values(),
                self.arguments,
            )

    def predicate(self, task: Task) -> BoolColumn:
        return self._predicates.feasible(task)

    def refusals(self, task: Task) -> Mapping[str, int]:
        return self._predicates.refusals(task)
