"""What the pods of a manifest cost, their waits, and the change with which they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from asched.fit.forms import FitAnswer, FitCosts
from asched.fit.trial import TrialPod
from asched.model.node import Node
from asched.pricing.prices import Prices
from asched.state.cluster import ClusterState

_S_PER_HOUR: Final = 3600


def costs_of(results: Iterable[TrialPod], state: ClusterState, prices: Prices) -> FitCosts:
    """The costs of decided pods. ``state`` is that after the decisions."""
    nodes = state.objects(Node)
    pods = waits = 0.0
    for result in results:
        info = state.pods[result.key].info
        if result.node:
            pods += prices.requests_per_hour(info.shape.requests, nodes[result.node])
        else:
            waits += prices.wait_per_hour(info.pod)
    return FitCosts(pods, waits, currency=prices.currency)


def with_added_nodes(found: FitAnswer, state: ClusterState, prices: Prices) -> FitAnswer:
    """The answer with the price of the nodes that its change adds."""
    costs, change = found.costs, found.change
    if costs is None or change is None or not change.nodes:
        return found
    price = change.nodes * prices.node_per_hour(state.objects(Node)[change.node])
    return replace(found, costs=replace(costs, change_per_hour=price))


def with_wait(found: FitAnswer) -> FitAnswer:
    """The answer with the cost of waiting until the estimated median start of the last pod."""
    costs, estimate = found.costs, found.estimate
    if costs is None or estimate is None or estimate.median_s is None:
        return found
    waits = costs.waits_per_hour * estimate.median_s / _S_PER_HOUR
    return replace(found, costs=replace(costs, waits_at_most=waits))
