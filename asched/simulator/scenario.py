"""The file format of scenarios: a cluster and its workload (docs/how-to/simulate.md).

:mod:`asched.simulator.expansion` expands a scenario into a workload trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from asched.config.kube_scheduler import Section
from asched.framework.runtime.strict import Problem, StrictDecoder, quote
from asched.model.quantity import QuantityText

API_VERSION: Final = "asched.dev/v1"
KIND: Final = "Scenario"
DEFAULT_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
MAX_PODS: Final = 1_000_000
_EARLIEST_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_START: Final = datetime(2100, 1, 1, tzinfo=UTC)
LONGEST: Final = timedelta(days=36_500)
"""A century, which keeps times within 64 bits."""
_ZERO: Final = timedelta()

NodeCount = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
PodCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_PODS)]
Spread = Annotated[float, msgspec.Meta(ge=0, le=10)]


class ScenarioError(ValueError):
    """An invalid scenario; ``problems`` lists all errors."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


def _check_positive(field: str, duration: timedelta | None, *, zero: bool = False) -> None:
    if duration is None:
        return
    if duration < _ZERO or (duration == _ZERO and not zero):
        raise ValueError(f"{field}: expected {'no less' if zero else 'more'} than 0s")
    if duration > LONGEST:
        raise ValueError(f"{field}: expected at most 876000h, which are 100 years")


class NodeTaint(Section, frozen=True):
    key: str
    effect: str
    value: str = ""


class NodeGroup(Section, frozen=True):
    """Identical nodes ``<name>-0``, ``<name>-1`` and so on."""

    name: str
    allocatable: dict[str, QuantityText]
    count: NodeCount = 1
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    zones: tuple[str, ...] = ()
    """Values of ``topology.kubernetes.io/zone``, assigned round-robin."""
    taints: tuple[NodeTaint, ...] = ()
    joins: timedelta = _ZERO
    """When they join, relative to the start."""

    def __post_init__(self) -> None:
        _check_positive("joins", self.joins, zero=True)


class Arrival(Section, frozen=True):
    """Arrival times of the pods of a group; by default all at once."""

    after: timedelta = _ZERO
    """Arrival of the first pod, or start of the Poisson process."""
    every: timedelta | None = None
    poisson: timedelta | None = None
    """Mean of the exponentially distributed interval."""
    together: PodCount = 1

    def __post_init__(self) -> None:
        _check_positive("after", self.after, zero=True)
        if self.every is not None and self.poisson is not None:
            raise ValueError("expected one of every and poisson, got both")
        _check_positive("every", self.every)
        _check_positive("poisson", self.poisson)


class Uniform(Section, frozen=True):
    low: timedelta
    high: timedelta

    def __post_init__(self) -> None:
        _check_positive("low", self.low, zero=True)
        if self.high < self.low:
            raise ValueError("high: expected no less than low")


class LogNormal(Section, frozen=True):
    median: timedelta
    sigma: Spread
    """Standard deviation of the natural logarithm."""

    def __post_init__(self) -> None:
        _check_positive("median", self.median)


class Lifetime(Section, frozen=True):
    """Running time of a bound pod: exactly one of these."""

    fixed: timedelta | None = None
    exponential: timedelta | None = None
    uniform: Uniform | None = None
    lognormal: LogNormal | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            wanted = "fixed, exponential, uniform and lognormal"
            raise ValueError(f"expected one of {wanted}, got {' and '.join(given) or 'none'}")
        _check_positive("fixed", self.fixed)
        _check_positive("exponential", self.exponential)


class ScenarioPodGroup(Section, frozen=True):
    """Identical pods ``<name>-0``, ``<name>-1`` and so on."""

    name: str
    template: dict[str, Any]
    """``metadata`` (labels, ownerReferences) and ``spec``, as in a Deployment."""
    count: PodCount = 1
    namespace: str = "default"
    arrival: Arrival = Arrival()
    lifetime: Lifetime | None = None
    """None for unlimited."""
    restarts: bool = True
    """Whether a pod is recreated after an eviction or the removal of its node."""


class ScenarioEvent(Section, frozen=True):
    """A scheduled event: exactly one of the other fields."""

    at: timedelta
    drain: str | None = None
    """Node to cordon and evict all pods from."""
    remove: str | None = None
    """Node to remove with its pods."""
    cordon: str | None = None
    uncordon: str | None = None
    delete_pods: str | None = None

    @property
    def what(self) -> tuple[str, str]:
        for field, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, field)
            if field != "at" and value is not None:
                return name, value
        raise AssertionError("an event without an action")

    def __post_init__(self) -> None:
        _check_positive("at", self.at, zero=True)
        fields = self.__struct_fields__[1:]
        if sum(getattr(self, field) is not None for field in fields) != 1:
            names = ", ".join(self.__struct_encode_fields__[1:])
            raise ValueError(f"expected at and exactly one of {names}")


class Scenario(Section, frozen=True):
    api_version: str
    kind: str
    nodes: tuple[NodeGroup, ...]
    pods: tuple[ScenarioPodGroup, ...]
    start: datetime = DEFAULT_START
    duration: timedelta | None = None
    """None: until no events are left."""
    seed: int = 0
    """Seed of arrivals and lifetimes."""
    priority_classes: dict[str, int] = msgspec.field(default_factory=dict)
    objects: tuple[dict[str, Any], ...] = ()
    """Other objects at the start, such as services, disruption budgets and volumes."""
    events: tuple[ScenarioEvent, ...] = ()

    def __post_init__(self) -> None:
        if self.api_version != API_VERSION or self.kind != KIND:
            raise ValueError(
                f"expected apiVersion {API_VERSION} and kind {KIND},"
                f" got {quote(self.api_version)} and {quote(self.kind)}"
            )
        if self.start.tzinfo is None:
            raise ValueError("start: expected a time with its offset, such as 2026-01-31T12:00:00Z")
        if not _EARLIEST_START <= self.start < _LATEST_START:
            raise ValueError("start: expected a time from 1970 to 2099")
        _check_positive("duration", self.duration)
        if sum(group.count for group in self.pods) > MAX_PODS:
            raise ValueError(f"pods: more than {MAX_PODS} in all")


def read_scenario(value: Any) -> Scenario:
    """Decode a scenario. Raises :class:`ScenarioError` with every error of form.

    Pods and nodes are validated when the scenario is expanded.
    """
    decoder = StrictDecoder()
    scenario = decoder.decode(value, Scenario)
    problems = decoder.problems + ([] if scenario is None else [*_inconsistencies(scenario)])
    if problems or scenario is None:
        raise ScenarioError(problems)
    return scenario


def _inconsistencies(scenario: Scenario) -> Iterator[Problem]:
    node_groups, pod_groups = set[str](), set[tuple[str, str]]()
    for index, group in enumerate(scenario.nodes):
        if group.name in node_groups:
            yield Problem(("nodes", index, "name"), f"{quote(group.name)} is given twice")
        node_groups.add(group.name)
    for index, pods in enumerate(scenario.pods):
        where = (pods.namespace, pods.name)
        if where in pod_groups:
            message = f"{quote(pods.name)} is given twice in namespace {pods.namespace}"
            yield Problem(("pods", index, "name"), message)
        pod_groups.add(where)
    nodes = {group.name: group.count for group in scenario.nodes}
    groups = {group.name for group in scenario.pods}
    for index, event in enumerate(scenario.events):
        field, name = event.what
        if field == "deletePods":
            if name not in groups:
                yield Problem(("events", index, field), f"unknown pod group {quote(name)}")
        elif not _is_node(name, nodes):
            message = f"unknown node {quote(name)}; expected GROUP-NUMBER, numbered from 0"
            yield Problem(("events", index, field), message)


def _is_node(name: str, counts: dict[str, int]) -> bool:
    group, _, number = name.rpartition("-")
    plain = number.isascii() and number.isdecimal() and number == str(int(number))
    return plain and int(number) < counts.get(group, 0)
