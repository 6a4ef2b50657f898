"""The costs of an explained decision and of its alternatives."""

from __future__ import annotations

from asched.audit.explanation import Explanation
from asched.model.node import Node
from asched.pricing.alternatives import DecisionCosts, decision_costs
from asched.pricing.prices import Prices
from asched.state.cluster import ClusterState


def costs_of_explained(
    found: Explanation, state: ClusterState, prices: Prices
) -> DecisionCosts | None:
    """The value of :attr:`Explanation.costs`.

    ``state`` is that of the explanation: its nodes are priced as they were before the decision.
    None if the pod has no node, or if the chosen node is not feasible when the attempt is repeated.
    """
    nodes = state.objects(Node)
    ranked = [nodes[node.name] for node in found.nodes if node.feasible]
    chosen = found.decision.node
    if found.decision.kind == "none" and ranked:
        chosen = ranked[0].name
    if chosen not in {node.name for node in ranked}:
        return None
    pod = state.pods[f"{found.namespace}/{found.name}"].info.pod
    return decision_costs(pod, chosen, ranked, prices)
