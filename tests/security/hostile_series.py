"""Objects of a hostile tenant that only cost together with others, one number after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from asched.model.resources import Resource, WatchedResource
from tests.security.hostile_objects import Json, a_pod, metadata, plain_preemptor, term

_NODES_PER_NUMBER: Final = 5
_LABELS: Final = {"app": "own"}

Made = tuple[WatchedResource, Json]


class HostileSeries(NamedTuple):
    """One way to make objects expensive for others."""

    name: str
    make: Callable[[int], Iterator[Made]]
    members: int = 1

    def raw(self, number: int) -> Iterator[tuple[WatchedResource, bytes]]:
        """The objects of that number, from 1, as JSON."""
        for resource, made in self.make(number):
            yield resource, json.dumps(made).encode()


def _own_pods(number: int, priority: int) -> Iterator[Made]:
    """Pods on the next nodes, which a preemptor cannot leave there."""
    for index in range(_NODES_PER_NUMBER):
        at = (number - 1) * _NODES_PER_NUMBER + index
        pod = a_pod("own", at, meta={"labels": _LABELS}, nodeName=f"n{at}", priority=priority)
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        yield Resource.PODS, pod


def _protected_victims(number: int) -> Iterator[Made]:
    if number == 1:
        spec = {"selector": {"matchLabels": _LABELS}}
        budget = {"metadata": metadata("own", 0), "spec": spec, "status": {"disruptionsAllowed": 0}}
        yield Resource.POD_DISRUPTION_BUDGETS, budget
    yield from _own_pods(number, -10)
    yield Resource.PODS, plain_preemptor(number, 0)


def _no_victims(number: int) -> Iterator[Made]:
    yield from _own_pods(number, 100)
    yield Resource.PODS, plain_preemptor(number, 0)


def _bound_terms(number: int) -> Iterator[Made]:
    """Half of the terms of kube-apiserver's two most usual topology keys."""
    host = {"topologyKey": "kubernetes.io/hostname"}
    terms = [{**term(number, i), **(host if i % 2 else {})} for i in range(128)]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    node = f"n{number % 50}"
    yield Resource.PODS, a_pod("bound", number, nodeName=node, affinity={"podAntiAffinity": rule})


SERIES_CLASSES: Final = (
    HostileSeries("preemptors: protected victims", _protected_victims),
    HostileSeries("preemptors: no victims", _no_victims),
    HostileSeries("bound anti-affinity", _bound_terms),
)
"""In a cluster of 5,000 nodes, 1,000 numbers cover each of them."""
