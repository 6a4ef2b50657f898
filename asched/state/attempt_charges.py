"""Charges namespaces for the attempts of their pods, as the fold takes the pods from the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asched.framework.pod_groups import group_of
from asched.framework.pod_info import QueuedPod
from asched.state import attempt_budget

if TYPE_CHECKING:
    from asched.state.cluster import ClusterState


class AttemptCharges:
    """Only the fold calls the methods: they change the budgets."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def settle(
        self,
        queued: QueuedPod,
        *,
        preemption: bool,
        turn_ns: int,
        search_steps: int,
        grouped: bool,
    ) -> None:
        """A pod is attempted, or put off until ``turn_ns``. ``preemption``: victims were searched,
        or would be. ``search_steps``: of a long search that was made. ``grouped``: in a group
        cycle, which is charged as a whole."""
        guards, now_ns = self._state.guards, self._state.now_ns
        costs, namespace = guards.costs, queued.info.namespace
        if queued.turn_ns and turn_ns:  # it is put off again
            if turn_ns != queued.turn_ns:  # because searches take longer than expected
                guards.budgets.charge(namespace, -queued.charged_steps, now_ns)
                self._charge(queued, preemption=True, search_steps=None)
            queued.turn_ns, queued.yields = 0, queued.yields and costs.is_short(queued.info)
        elif queued.turn_ns:  # charged when it was put off
            if queued.turn_ns > now_ns:
                self._give_back(queued)
            more = search_steps - queued.charged_steps
            if more > 0 and costs.limits(namespace, search_steps):
                guards.budgets.charge(namespace, more, now_ns)
            queued.turn_ns, queued.yields = 0, False
        elif not costs.is_cheap(queued.info) or (
            preemption and not grouped and (search_steps or costs.is_charged(queued.info))
        ):
            made = None if turn_ns else search_steps
            steps = self._charge(queued, preemption=preemption, search_steps=made)
            short = 0 < steps <= attempt_budget.SHORT_STEPS
            queued.yields = bool(turn_ns) and short and group_of(queued.info.pod) is None
            costs.note_forms(queued.info, turn_ns or now_ns)
        if search_steps:
            guards.budgets.note_search(namespace, search_steps)

    def _give_back(self, queued: QueuedPod) -> None:
        """A pod is attempted before its turn, because no other pod waits: it is free."""
        guards, namespace, now_ns = self._state.guards, queued.info.namespace, self._state.now_ns
        guards.budgets.charge(namespace, -queued.charged_steps, now_ns)
        guards.costs.note_forms(queued.info, now_ns)
        queued.charged_steps = 0

    def _charge(self, queued: QueuedPod, *, preemption: bool, search_steps: int | None) -> int:
        """Charge an attempt, which was made with a search for victims of so many steps, or has a
        turn; returns its steps, 0 if it is free."""
        guards, namespace = self._state.guards, queued.info.namespace
        queued.charged_steps = guards.costs.of_attempt(
            queued.info, preemption=preemption, search_steps=search_steps
        )
        # The first attempt of a form is not given back: another pod may have the same form.
        steps = queued.charged_steps + guards.costs.of_first(queued.info)
        if not steps or not guards.costs.limits(namespace, steps):
            queued.charged_steps = 0
            return 0
        guards.budgets.charge(namespace, steps, self._state.now_ns)
        return steps
