"""Which searches for devices are charged to a namespace: the first for claims of each form.

The estimate depends on the claims and the number of nodes only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from asched.model.pod import Pod
from asched.model.resource_claims import DeviceSelector, ResourceClaim
from asched.state.attempt_budget import FREE_STEPS
from asched.state.charged_forms import form_of

SIMPLE_STEPS: Final = 2_000
"""For each node: one request for one device."""
OTHER_STEPS: Final = 4_000
"""For each node: several requests or devices, alternatives, constraints or long selectors."""
MOST_STEPS: Final = 15_000_000
"""The search for devices of one attempt is stopped after this time."""
MAX_FORMS: Final = 8
"""Forms of claims of one namespace. Answers are kept for few searches of a large cluster."""

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


def search_form(pod: Pod, claims: Mapping[str, ResourceClaim]) -> str:
    """The form of the claims that have to be allocated for the pod; empty if there are none."""
    specs = [claim.spec for claim in _unallocated(pod, claims)]
    if not specs:
        return ""
    return form_of(pod, specs)


def search_steps(pod: Pod, claims: Mapping[str, ResourceClaim], nodes: int) -> int:
    """The estimated steps of the search for devices; 0 if it is free."""
    unallocated = [*_unallocated(pod, claims)]
    if not unallocated:
        return 0
    simple = len(unallocated) == 1 and _is_simple(unallocated[0])
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
    generated = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name or generated.get(entry.name)
        claim = claims.get(f"{pod.namespace}/{name}") if name else None
        if claim is not None and claim.status.allocation is None:
            yield claim
