"""A budget of decision time for each namespace, so that expensive pods of one do not delay others.

Most attempts cost the same and are free. One for a pod with many pod affinity terms, topology
spread constraints, requirements of node affinity, host ports or unbound volumes takes time in
proportion to the cluster, and so does preemption for a pod with any term or host port. It is
charged to its namespace by counted steps, never by measured time: a replay charges the same. With
few terms, and with claims for devices, the first attempt for pods of a form is charged
(:mod:`asched.state.charged_forms`).

Short attempts, and searches for victims of pods without terms, are charged only while pods of other
namespaces wait to be attempted. Beyond its budget such a pod is attempted as soon as none of them
waits, or at its turn.

A step is charged as :data:`NS_PER_STEP`, or as what the daemon measured at its start, which is
recorded. A namespace pays back one second in :data:`SHARE`, and owes up to :data:`BURST_NS`, or one
attempt. Beyond that, each further expensive pod is put off to a turn of its own, at which its
attempt is already charged: the generic cell rate algorithm, with a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asched.model.limits import label_values, node_requirement_count, term_count
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.model.requests import host_ports
from asched.model.storage import PersistentVolumeClaim

Times = tuple[tuple[str, int], ...]
"""By namespace."""
FREE_TERMS: Final = 8
"""Pods with up to this many terms and constraints are charged for the first of their form only:
the counts of matching pods are kept."""
FREE_REQUIREMENTS: Final = 64
"""Pods with up to this many requirements of node affinity are free."""
NODES_PER_STEP: Final = 8
"""Nodes that are compared with a requirement in one step."""
PREEMPTION_STEPS: Final = 2500
"""For each node: with terms, constraints or host ports, nodes are tried one at a time."""
_NODES_PER_CLAIM_STEP: Final = 64
"""Nodes that are compared in one step of choosing different volumes for the claims of a pod."""
STEPS_PER_CANDIDATE: Final = 1500
"""For each node where victims are selected for a pod without terms: 60 microseconds."""
STEPS_PER_VICTIM: Final = 25
"""For each pod of the cluster: the columns of pods by importance may have to be sorted again."""
_MIN_CANDIDATES: Final = 100
"""``minCandidateNodesAbsolute``, and one in ten nodes is ``minCandidateNodesPercentage``."""
_GANG_STEPS: Final = 30
"""For each node and form of members: to try whether preemption completes a gang."""
GANG_FORMS_BY_NODES: Final = 80_000
"""Forms of the members of such a gang times nodes, about 0.1 s. Filters run again for each form."""
MIN_GANG_FORMS: Final = 8
"""Are tried in a cluster of any size."""
FREE_STEPS: Final = 250_000
"""Attempts of up to this many steps are free: 10 milliseconds."""
SHORT_STEPS: Final = 2_500_000
"""Attempts of up to this many steps are charged only while pods of other namespaces wait to be
attempted: no pod waits longer than 0.1 s for one of them."""
FREE_FORM_STEPS: Final = 50_000
"""First attempts of a form of up to this many steps are free: 2 milliseconds."""
NS_PER_STEP: Final = 40
"""The least time of one step. On slower machines a step is charged as longer."""
SHARE: Final = 16
"""A namespace gets one part in this many of one core."""
BURST_NS: Final = SHARE * NS_PER_S // 4
"""How far a namespace may be behind in paying: attempts of a quarter of a second together."""


def attempt_steps(pod: Pod, nodes: int, pods: int) -> int:
    """The estimated steps of an attempt in a cluster of this size, without preemption; 0 if it is
    free."""
    terms, requirements = term_count(pod.spec), node_requirement_count(pod.spec)
    steps = terms * (nodes + pods) if terms > FREE_TERMS else 0
    if requirements > FREE_REQUIREMENTS:
        steps += requirements * nodes // NODES_PER_STEP
    steps += len(host_ports(pod)) * nodes
    return steps if steps > FREE_STEPS else 0


def volume_steps(claims: Sequence[PersistentVolumeClaim], nodes: int, volumes: int) -> int:
    """The estimated steps of matching the unbound claims of a pod with volumes; 0 if it is free.

    Each claim is compared with the choices of those before, for each of these in turn."""
    steps = len(claims) ** 3 * nodes // _NODES_PER_CLAIM_STEP
    steps += volumes * sum(label_values(claim.spec.selector) for claim in claims)
    return steps if steps > FREE_STEPS else 0


def form_steps(pod: Pod, nodes: int, pods: int) -> int:
    """The estimated steps of counting pods for few terms and constraints; 0 if it is free."""
    terms = term_count(pod.spec)
    steps = terms * (nodes + pods)
    return steps if terms <= FREE_TERMS and steps > FREE_FORM_STEPS else 0


def preemption_steps(pod: Pod, nodes: int) -> int:
    """The estimated steps of the search for victims; 0 if it is free."""
    steps = nodes * PREEMPTION_STEPS
    if steps <= FREE_STEPS or pod.spec.preemption_policy == "Never":
        return 0
    return steps if term_count(pod.spec) or host_ports(pod) else 0


def plain_preemption_steps(pod: Pod, nodes: int, pods: int) -> int:
    """The estimated steps of the search for victims of a pod without terms and host ports; 0 if it
    is free."""
    if pod.spec.preemption_policy == "Never":
        return 0
    steps = min(nodes, max(_MIN_CANDIDATES, nodes // 10)) * STEPS_PER_CANDIDATE
    return steps + pods * STEPS_PER_VICTIM if steps > FREE_STEPS else 0


def most_gang_forms(nodes: int) -> int:
    """How many forms the members of a gang may have that preempts pod by pod."""
    return max(MIN_GANG_FORMS, GANG_FORMS_BY_NODES // max(1, nodes))


def gang_steps(forms: int, nodes: int) -> int:
    """The estimated steps of the check that preemption completes a gang with members of so many
    forms; 0 if it is free."""
    steps = forms * nodes * _GANG_STEPS
    return steps if steps > FREE_STEPS and forms <= most_gang_forms(nodes) else 0


class AttemptBudgets:
    """What each namespace owes. Only the fold changes it."""

    def __init__(self) -> None:
        self.step_ns = NS_PER_STEP
        """How long a step takes on this machine (``EngineStarted.step_ns``)."""
        self._paid_at_ns: dict[str, int] = {}
        self._group_turns_ns: dict[str, int] = {}
        """The latest turn of a pod group of each namespace."""
        self._search_steps: dict[str, int] = {}
        """Of namespaces that owe: the steps of their longest search for victims."""

    def owes(self, namespace: str, now_ns: int) -> bool:
        """Whether the namespace has not paid for all attempts yet."""
        return self._paid_at_ns.get(namespace, 0) > now_ns

    def turn_ns(self, namespace: str, steps: int, now_ns: int) -> int:
        """When the next expensive pod of the namespace may be attempted; 0 for now."""
        paid_at_ns = self._paid_at_ns.get(namespace, 0)
        turn_ns = paid_at_ns + min(self._cost_ns(steps), BURST_NS) - BURST_NS
        return turn_ns if paid_at_ns > now_ns and turn_ns > now_ns else 0

    def group_turn_ns(self, namespace: str, steps: int, now_ns: int) -> int:
        """When a group may be tried; 0 for now. Groups have their turns one after the other, and
        pay when they were tried: if that cost more than ``steps``, later ones are put off again."""
        turn_ns = self.turn_ns(namespace, steps, now_ns)
        if not turn_ns:
            return 0
        return max(turn_ns, self._group_turns_ns.get(namespace, 0) + self._cost_ns(steps))

    def note_group_turn(self, namespace: str, turn_ns: int, now_ns: int) -> None:
        """A group was put off until then."""
        turns_ns = self._group_turns_ns
        turns_ns[namespace] = max(turn_ns, turns_ns.get(namespace, 0))
        for past in [name for name, at_ns in turns_ns.items() if at_ns <= now_ns]:
            del turns_ns[past]

    def note_search(self, namespace: str, steps: int) -> None:
        """A search for victims took so many steps. While the namespace owes, others are charged
        like it."""
        if namespace in self._paid_at_ns:
            self._search_steps[namespace] = max(steps, self._search_steps.get(namespace, 0))

    def search_steps(self, namespace: str) -> int:
        """The steps of the longest search for victims since the namespace owes."""
        return self._search_steps.get(namespace, 0)

    def charge(self, namespace: str, steps: int, now_ns: int) -> None:
        """An attempt was made, or has a turn. Negative steps for a turn that is not needed."""
        paid_at_ns = self._paid_at_ns
        owed_since_ns = max(paid_at_ns.get(namespace, 0), now_ns)
        paid_at_ns[namespace] = owed_since_ns + self._cost_ns(steps)
        for paid in [name for name, at_ns in paid_at_ns.items() if at_ns <= now_ns]:
            del paid_at_ns[paid]
            self._search_steps.pop(paid, None)

    def snapshot(self) -> Times:
        return tuple(self._paid_at_ns.items())

    def group_turns(self) -> Times:
        """The latest turns of pod groups, for checkpoints."""
        return tuple(self._group_turns_ns.items())

    def victim_searches(self) -> Times:
        """The steps of the longest search for victims, for checkpoints."""
        return tuple(self._search_steps.items())

    def restore(
        self, snapshot: Times, group_turns: Times, victim_searches: Times, step_ns: int
    ) -> None:
        self.step_ns = step_ns
        self._search_steps.update(victim_searches)
        self._paid_at_ns.update(snapshot)
        self._group_turns_ns.update(group_turns)

    def _cost_ns(self, steps: int) -> int:
        """How long a namespace takes to pay for an attempt."""
        return steps * self.step_ns * SHARE
