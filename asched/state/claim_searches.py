"""Which searches for devices are charged to a namespace: the first for claims of each form.

The estimate depends on the claims and the number of nodes only.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from datetime import timedelta
from typing import Final

from asched.dra.steps import STEP
from asched.model.pod import Pod, claim_names
from asched.model.quantity import QuantityText
from asched.model.resource_claims import DeviceSelector, ResourceClaim
from asched.state.attempt_budget import FREE_STEPS, NS_PER_STEP
from asched.state.charged_forms import form_of

SIMPLE_STEPS: Final = 2_000
"""For each node: one request for one device."""
OTHER_STEPS: Final = 4_000
"""For each node: several requests or devices, alternatives, constraints or long selectors."""
MOST_STEPS: Final = 15_000_000
"""The search for devices of one attempt is stopped after this time."""
STEPS_OF_SEARCH_STEP: Final = STEP // timedelta(microseconds=1) * 1000 // NS_PER_STEP
"""Steps of attempts in the time of a counted step of a search."""
MIN_FORMS: Final = 8
MAX_FORMS: Final = 64
"""Forms of claims of one namespace. Answers are kept for few searches of a large cluster."""
_NODES_OF_FORMS: Final = 40_000


def most_forms(nodes: int) -> int:
    """How many forms of claims of one namespace are known in a cluster of this size."""
    return max(MIN_FORMS, min(MAX_FORMS, _NODES_OF_FORMS // max(1, nodes)))


_MAX_EXPRESSION: Final = 256
_CALL: Final = re.compile(r"(\w+)\s*\(")
_CHEAP_CALLS: Final = frozenset(
    {
        "compareTo",
        "contains",
        "endsWith",
        "has",
        "isGreaterThan",
        "isLessThan",
        "quantity",
        "semver",
        "startsWith",
    }
)


SpecialAmounts = tuple[tuple[tuple[str, QuantityText], ...], ...]
"""For each container with extended resources that devices serve: their names and amounts."""


def special_amounts(pod: Pod, resources: Container[str]) -> SpecialAmounts:
    """What containers request of these extended resources, which classes of devices provide."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    amounts = (
        tuple(sorted(item for item in each.resources.requests.items() if item[0] in resources))
        for each in containers
    )
    return tuple(each for each in amounts if each)


def search_form(pod: Pod, claims: Mapping[str, ResourceClaim], special: SpecialAmounts) -> str:
    """The form of what has to be allocated for the pod; empty if there is nothing."""
    specs = [claim.spec for claim in _unallocated(pod, claims)]
    return form_of(pod, (specs, special)) if specs or special else ""


def search_steps(
    pod: Pod, claims: Mapping[str, ResourceClaim], special: SpecialAmounts, nodes: int
) -> int:
    """The estimated steps of the search for devices; 0 if it is free."""
    unallocated = [*_unallocated(pod, claims)]
    if special:
        simple = not unallocated and len(special) == len(special[0]) == 1
    else:
        simple = len(unallocated) == 1 and _is_simple(unallocated[0])
    if not unallocated and not special:
        return 0
    steps = min(nodes * (SIMPLE_STEPS if simple else OTHER_STEPS), MOST_STEPS)
    return steps if steps > FREE_STEPS else 0


def _is_simple(claim: ResourceClaim) -> bool:
    devices = claim.spec.devices
    exactly = devices.requests[0].exactly if len(devices.requests) == 1 else None
    return (
        exactly is not None
        and exactly.count == 1
        and len(exactly.selectors) <= 1
        and all(map(_is_cheap_selector, exactly.selectors))
        and not devices.constraints
    )


def _is_cheap_selector(selector: DeviceSelector) -> bool:
    expression = selector.cel.expression if selector.cel is not None else ""
    calls = set(_CALL.findall(expression))
    return len(expression) <= _MAX_EXPRESSION and calls <= _CHEAP_CALLS


def _unallocated(pod: Pod, claims: Mapping[str, ResourceClaim]) -> Iterator[ResourceClaim]:
    for name in claim_names(pod):
        claim = claims.get(f"{pod.namespace}/{name}")
        if claim is not None and claim.status.allocation is None:
            yield claim
