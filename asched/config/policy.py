"""The legacy scheduler Policy (``kind: Policy``, ``apiVersion: v1``): its shape and validation.

kube-scheduler supported it until 1.22. :mod:`asched.config.policy_conversion` converts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import msgspec

from asched.config.kube_scheduler import ExtenderTLS, ManagedResource, Section
from asched.framework.runtime.strict import Path, Problem, StrictDecoder, quote
from asched.model.quantity import format_duration

API_VERSION: Final = "v1"
KIND: Final = "Policy"
MAX_WEIGHT: Final = 2**31 - 1


class ServiceAffinity(Section, frozen=True):
    """Pods of a service are placed on nodes with equal values of these labels."""

    labels: tuple[str, ...] = ()


class LabelsPresence(Section, frozen=True):
    """Nodes must have all of these labels, or none of them."""

    labels: tuple[str, ...] = ()
    presence: bool = False


class PredicateArgument(Section, frozen=True):
    service_affinity: ServiceAffinity | None = None
    labels_presence: LabelsPresence | None = None


class PredicatePolicy(Section, frozen=True):
    name: str
    argument: PredicateArgument | None = None


class ServiceAntiAffinity(Section, frozen=True):
    """Pods of one service are spread over the values of this label."""

    label: str = ""


class LabelPreference(Section, frozen=True):
    """Prefers nodes with the label, or those without."""

    label: str = ""
    presence: bool = False


class ShapePoint(Section, frozen=True):
    utilization: int
    score: int


class ResourceSpec(Section, frozen=True):
    name: str
    weight: int = 1


class RequestedToCapacityRatioArguments(Section, frozen=True):
    shape: tuple[ShapePoint, ...] = ()
    resources: tuple[ResourceSpec, ...] = ()


class PriorityArgument(Section, frozen=True):
    service_anti_affinity: ServiceAntiAffinity | None = None
    label_preference: LabelPreference | None = None
    requested_to_capacity_ratio_arguments: RequestedToCapacityRatioArguments | None = None


class PriorityPolicy(Section, frozen=True):
    name: str
    weight: int = 0
    argument: PriorityArgument | None = None


class LegacyExtender(Section, frozen=True, omit_defaults=True):
    """An extender in a policy; the timeout is in nanoseconds."""

    url_prefix: str
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = False
    tls_config: ExtenderTLS | None = None
    http_timeout: int = 0
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False

    def converted(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as in a KubeSchedulerConfiguration."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        if self.http_timeout:
            timeout = timedelta(microseconds=self.http_timeout // 1000)
            plain["httpTimeout"] = format_duration(timeout)
        return {"enableHTTPS" if k == "enableHttps" else k: v for k, v in plain.items()}


class Policy(Section, frozen=True):
    """The complete document. Missing (not empty) ``predicates`` or ``priorities`` mean the legacy
    defaults."""

    kind: str
    api_version: str
    predicates: tuple[PredicatePolicy, ...] | None = None
    priorities: tuple[PriorityPolicy, ...] | None = None
    extenders: tuple[LegacyExtender, ...] = ()
    hard_pod_affinity_symmetric_weight: int = 0
    """0 means the default."""
    always_check_all_predicates: bool = False


def decode_policy(document: object) -> tuple[Policy | None, list[Problem]]:
    """Decode a parsed document; with problems the policy is not usable.

    Names of predicates and priorities are not checked.
    """
    decoder = StrictDecoder()
    policy = decoder.decode(document, Policy)
    if policy is None:
        return None, decoder.problems
    return policy, [*decoder.problems, *_problems(policy)]


def _problems(policy: Policy) -> Iterator[Problem]:
    for field, given, wanted in (
        ("kind", policy.kind, KIND),
        ("apiVersion", policy.api_version, API_VERSION),
    ):
        if given != wanted:
            yield Problem((field,), f"expected {wanted}, got {quote(given)}")
    for index, predicate in enumerate(policy.predicates or ()):
        yield from _argument_problems(predicate.argument, ("predicates", index, "argument"))
    for index, priority in enumerate(policy.priorities or ()):
        path: Path = ("priorities", index)
        yield from _argument_problems(priority.argument, (*path, "argument"))
        if not 0 < priority.weight <= MAX_WEIGHT:
            got = f"must be in the range 1 to {MAX_WEIGHT}, got {priority.weight}"
            yield Problem((*path, "weight"), got)
    weight = policy.hard_pod_affinity_symmetric_weight
    if not 0 <= weight <= 100:
        where: Path = ("hardPodAffinitySymmetricWeight",)
        yield Problem(where, f"must be in the range 1 to 100, got {weight}")


def _argument_problems(
    argument: PredicateArgument | PriorityArgument | None, path: Path
) -> Iterator[Problem]:
    if argument is None:
        return
    fields = msgspec.structs.fields(argument)
    given = [field for field in fields if getattr(argument, field.name) is not None]
    if len(given) != 1:
        choices = ", ".join(field.encode_name for field in fields)
        yield Problem(path, f"expected exactly one of {choices}, got {len(given)}")
