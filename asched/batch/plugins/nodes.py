"""predicates and nodeorder: filter the nodes by everything but resources, and score them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from asched.batch.built_in_plugins import BuiltInPredicates, BuiltInScores, NodeOrderWeights
from asched.batch.corrections import Correction
from asched.batch.kubernetes_1_16 import LegacyPredicates, LegacyScores
from asched.batch.open_session import OpenSession
from asched.framework.nodes import BoolColumn, Int64Column, RowArray
from asched.framework.session_objects import Task
from asched.framework.session_plugins import NodeOrderPlugin, PredicatePlugin, Session


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
            self._predicates = LegacyPredicates(session, self.arguments)

    def predicate(self, task: Task) -> BoolColumn:
        return self._predicates.feasible(task)

    def rejections(self, task: Task) -> Mapping[str, int]:
        return self._predicates.rejections(task)


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
            self._scores = BuiltInScores(session.handle, weights)
        else:
            self._scores = LegacyScores(session, weights)

    def node_order(self, task: Task, rows: RowArray) -> Int64Column:
        return self._scores.scores(task, rows)
