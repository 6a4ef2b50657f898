"""What another node would have cost: the chosen node against the runner-up and the cheapest one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asched.framework.pod_info import shape_of
from asched.model.node import Node
from asched.model.pod import Pod
from asched.pricing.prices import Prices


class NodeCost(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod on a node costs by the hour."""

    node: str
    node_per_hour: float
    """The price of the whole node."""
    pod_per_hour: float
    """The part of it that the pod's requests account for."""
    node_difference: float = 0.0
    """``node_per_hour`` less that of the chosen node: negative if this node is cheaper."""
    pod_difference: float = 0.0


class DecisionCosts(msgspec.Struct, frozen=True, rename="camel"):
    """The chosen node and the feasible alternatives, in the currency of the prices."""

    chosen: NodeCost
    runner_up: NodeCost | None
    """The best other node by score; None if only one node is feasible."""
    cheapest: NodeCost
    """Of the feasible nodes the one on which the pod costs the least; with equal parts, the one
    with the lower price, then the chosen one, then the one with the higher score."""
    currency: str = ""


def decision_costs(pod: Pod, chosen: str, ranked: Sequence[Node], prices: Prices) -> DecisionCosts:
    """The costs of a decision. ``ranked``: the feasible nodes, the best score first.

    ``chosen`` must be one of them.
    """
    requests = shape_of(pod).requests
    costs = {
        node.name: NodeCost(
            node.name, prices.node_per_hour(node), prices.requests_per_hour(requests, node)
        )
        for node in ranked
    }
    base = costs[chosen]

    def compared(cost: NodeCost) -> NodeCost:
        return msgspec.structs.replace(
            cost,
            node_difference=cost.node_per_hour - base.node_per_hour,
            pod_difference=cost.pod_per_hour - base.pod_per_hour,
        )

    runner_up = next((cost for name, cost in costs.items() if name != chosen), None)
    # The chosen node comes first among equals: a node that saves nothing is no alternative.
    candidates = [base, *costs.values()]
    cheapest = min(candidates, key=lambda cost: (cost.pod_per_hour, cost.node_per_hour))
    return DecisionCosts(
        chosen=base,
        runner_up=None if runner_up is None else compared(runner_up),
        cheapest=compared(cheapest),
        currency=prices.currency,
    )
