"""Scenarios: clusters and workloads described in a file (``docs/simulate.md``).

Here is what may be written. :mod:`asched.simulator.expansion` makes a history of it.
"""

from __future__ import annotations

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
_ZERO: Final = timedelta()

NodeCount = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
PodCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_PODS)]
Spread = Annotated[float, msgspec.Meta(ge=0, le=10)]


class ScenarioError(ValueError):
    """A scenario cannot be used; ``problems`` lists everything that was found wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


def _demand_positive(field: str, duration: timedelta | None, *, zero: bool = False) -> None:
    if duration is None or duration > _ZERO or (zero and duration == _ZERO):
        return
    raise ValueError(f"{field}: expected {'no less' if zero else 'more'} than 0s")


class NodeTaint(Section, frozen=True):
    key: str
    effect: str
    value: str = ""


class NodeGroup(Section, frozen=True):
    """Nodes that are alike: ``<name>-0``, ``<name>-1`` and so on."""

    name: str
    allocatable: dict[str, QuantityText]
    count: NodeCount = 1
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    zones: tuple[str, ...] = ()
    """Values of ``topology.kubernetes.io/zone`` that the nodes take in turn."""
    taints: tuple[NodeTaint, ...] = ()
    joins: timedelta = _ZERO
    """When they join, from the start on."""

    def __post_init__(self) -> None:
        _demand_positive("joins", self.joins, zero=True)


class Arrival(Section, frozen=True):
    """When the pods of a group come: all at once unless it says otherwise."""

    after: timedelta = _ZERO
    """When the first comes, or for a Poisson process, when it begins."""
    every: timedelta | None = None
    """A fixed distance between two."""
    poisson: timedelta | None = None
    """The mean distance between two, which is drawn from an exponential distribution."""
    together: PodCount = 1
    """How many come at a time."""

    def __post_init__(self) -> None:
        _demand_positive("after", self.after, zero=True)
        if self.every is not None and self.poisson is not None:
            raise ValueError("expected one of every and poisson, got both")
        _demand_positive("every", self.every)
        _demand_positive("poisson", self.poisson)


class Uniform(Section, frozen=True):
    low: timedelta
    high: timedelta

    def __post_init__(self) -> None:
        _demand_positive("low", self.low, zero=True)
        if self.high < self.low:
            raise ValueError("high: expected no less than low")


class LogNormal(Section, frozen=True):
    median: timedelta
    sigma: Spread
    """Of the natural logarithm."""

    def __post_init__(self) -> None:
        _demand_positive("median", self.median)


class Lifetime(Section, frozen=True):
    """How long a pod runs once it is bound: exactly one of these."""

    fixed: timedelta | None = None
    exponential: timedelta | None = None
    """The mean."""
    uniform: Uniform | None = None
    lognormal: LogNormal | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            wanted = "fixed, exponential, uniform and lognormal"
            raise ValueError(f"expected one of {wanted}, got {' and '.join(given) or 'none'}")
        _demand_positive("fixed", self.fixed)
        _demand_positive("exponential", self.exponential)


class ScenarioPodGroup(Section, frozen=True):
    """Pods that are alike: ``<name>-0``, ``<name>-1`` and so on."""

    name: str
    template: dict[str, Any]
    """``metadata`` (labels, ownerReferences) and ``spec``, as in a Deployment."""
    count: PodCount = 1
    namespace: str = "default"
    arrival: Arrival = Arrival()
    lifetime: Lifetime | None = None
    """None: they run for ever."""
    restarts: bool = True
    """Whether a pod that is evicted, or whose node goes, comes back."""


class ScenarioEvent(Section, frozen=True):
    """Something that happens at a time: exactly one of the other fields."""

    at: timedelta
    drain: str | None = None
    """A node is cordoned and its pods are evicted."""
    remove: str | None = None
    """A node goes, and its pods with it."""
    cordon: str | None = None
    uncordon: str | None = None
    delete_pods: str | None = None
    """All pods of a group are deleted, wherever they are."""

    @property
    def what(self) -> tuple[str, str]:
        """The field that is given, and its value."""
        for field, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, field)
            if field != "at" and value is not None:
                return name, value
        raise AssertionError("an event without anything that happens")

    def __post_init__(self) -> None:
        _demand_positive("at", self.at, zero=True)
        fields = self.__struct_fields__[1:]
        if sum(getattr(self, field) is not None for field in fields) != 1:
            names = ", ".join(self.__struct_encode_fields__[1:])
            raise ValueError(f"expected at and exactly one of {names}")


class Scenario(Section, frozen=True):
    """The whole document."""

    api_version: str
    kind: str
    nodes: tuple[NodeGroup, ...]
    pods: tuple[ScenarioPodGroup, ...]
    start: datetime = DEFAULT_START
    duration: timedelta | None = None
    """None: until nothing happens any more."""
    seed: int = 0
    """Draws arrivals and lifetimes."""
    priority_classes: dict[str, int] = msgspec.field(default_factory=dict)
    objects: tuple[dict[str, Any], ...] = ()
    """Whatever else there is from the start: services, disruption budgets, volumes ..."""
    events: tuple[ScenarioEvent, ...] = ()

    def __post_init__(self) -> None:
        if self.api_version != API_VERSION or self.kind != KIND:
            raise ValueError(
                f"expected apiVersion {API_VERSION} and kind {KIND},"
                f" got {quote(self.api_version)} and {quote(self.kind)}"
            )
        if self.start.tzinfo is None:
            raise ValueError("start: expected a time with its offset, such as 2026-01-31T12:00:00Z")
        _demand_positive("duration", self.duration)
        if sum(group.count for group in self.pods) > MAX_PODS:
            raise ValueError(f"pods: more than {MAX_PODS} in all")


def read_scenario(value: Any) -> Scenario:
    """The scenario that a document holds. Raises :class:`ScenarioError` with every mistake in its
    form; what its pods and nodes are like is looked at when it is expanded."""
    decoder = StrictDecoder()
    scenario = decoder.decode(value, Scenario)
    problems = decoder.problems + ([] if scenario is None else _contradictions(scenario))
    if problems or scenario is None:
        raise ScenarioError(problems)
    return scenario


def _contradictions(scenario: Scenario) -> list[Problem]:
    problems = []
    node_groups, pod_groups = set[str](), set[tuple[str, str]]()
    for index, group in enumerate(scenario.nodes):
        if group.name in node_groups:
            problems.append(
                Problem(("nodes", index, "name"), f"{quote(group.name)} is given twice")
            )
        node_groups.add(group.name)
    for index, pods in enumerate(scenario.pods):
        where = (pods.namespace, pods.name)
        if where in pod_groups:
            message = f"{quote(pods.name)} is given twice in namespace {pods.namespace}"
            problems.append(Problem(("pods", index, "name"), message))
        pod_groups.add(where)
    nodes = {group.name: group.count for group in scenario.nodes}
    groups = {group.name for group in scenario.pods}
    for index, event in enumerate(scenario.events):
        field, name = event.what
        if field == "deletePods":
            if name not in groups:
                message = f"no group of pods is called {quote(name)}"
                problems.append(Problem(("events", index, field), message))
        elif not _is_node(name, nodes):
            message = f"no node is called {quote(name)}; nodes are called GROUP-NUMBER, from 0 on"
            problems.append(Problem(("events", index, field), message))
    return problems


def _is_node(name: str, counts: dict[str, int]) -> bool:
    group, _, number = name.rpartition("-")
    plain = number.isascii() and number.isdecimal() and number == str(int(number))
    return plain and int(number) < counts.get(group, 0)
