"""Expansion of a scenario into a workload trace.

The embedded API server admits nodes, pods and objects: it sets defaults and rejects invalid ones
with its messages. All draws come from the scenario's seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import Any, Final, cast

import msgspec

from asched.apiserver.cluster import SYSTEM_NAMESPACES, SYSTEM_PRIORITY_CLASSES, EmbeddedCluster
from asched.apiserver.errors import StatusError, qualified
from asched.apiserver.kubelet import simulated_node
from asched.apiserver.schemas import check_fields
from asched.framework.runtime.strict import Path, Problem, quote
from asched.model.meta import Object
from asched.model.node import ZONE_LABEL, Node
from asched.model.pod import DEFAULT_SCHEDULER_NAME, Pod
from asched.model.quantity import NS_PER_S
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import (
    AnyObject,
    DecodeError,
    GroupResource,
    Resource,
    WatchedResource,
    decode,
)
from asched.simulator.pods import api_time
from asched.simulator.scenario import (
    LONGEST,
    Arrival,
    Lifetime,
    NodeGroup,
    Scenario,
    ScenarioError,
    ScenarioEvent,
    ScenarioPodGroup,
)
from asched.simulator.trace import (
    NodeDrained,
    ObjectRemoved,
    ObjectSet,
    PodCreated,
    PodDeleted,
    TraceEvent,
    WorkloadTrace,
)

_US: Final = timedelta(microseconds=1)
MAX_RUN_NS: Final = LONGEST // _US * 1000
"""Longer draws are capped."""


def expand(scenario: Scenario, scheduler_name: str = DEFAULT_SCHEDULER_NAME) -> WorkloadTrace:
    """The trace of a scenario. Pods without a scheduler name get ``scheduler_name``.

    Raises :class:`ScenarioError` with every object that the API server rejects.
    """
    return _Expansion(scenario, scheduler_name).trace()


CLAIMS: Final = "resourceclaims.resource.k8s.io"


class _RejectedError(Exception):
    """A rejected object; the problem is recorded."""


class _TooLateError(Exception):
    """A pod arrives after the longest simulation."""


class _Expansion:
    def __init__(self, scenario: Scenario, scheduler_name: str) -> None:
        self._scenario = scenario
        self._scheduler_name = scheduler_name
        self._begin_ns = round(scenario.start.timestamp()) * NS_PER_S
        begin_s = self._begin_ns // NS_PER_S
        self._cluster = EmbeddedCluster(clock=lambda: begin_s, seed=scenario.seed)
        self._problems: list[Problem] = []
        self._nodes: dict[str, Node] = {}
        self._created: dict[str, list[PodCreated]] = {}
        self._claim_templates: list[ResourceClaim] = []

    def trace(self) -> WorkloadTrace:
        scenario = self._scenario
        events = [*self._objects()]
        for index, nodes in enumerate(scenario.nodes):
            events += self._node_events(nodes, ("nodes", index))
        for index, pods in enumerate(scenario.pods):
            try:
                template = self._template(pods, ("pods", index, "template"))
            except _RejectedError:
                continue
            self._check_claims(template, ("pods", index, "template", "spec", "resourceClaims"))
            created = self._created.setdefault(pods.name, [])
            try:
                created.extend(self._pod_events(pods, template))
            except _TooLateError:
                text = "expected that the last pod arrives within 100 years"
                self._problems.append(Problem(("pods", index, "arrival"), text))
        if self._problems:
            raise ScenarioError(self._problems)
        events += [created for group in self._created.values() for created in group]
        for event in scenario.events:
            events += self._expand_event(event)
        # The sort is stable: at the same time objects precede nodes, pods and events.
        events.sort(key=lambda event: event.at_ns)
        duration = scenario.duration
        end_ns = None if duration is None else self._begin_ns + _ns(duration)
        return WorkloadTrace(tuple(events), self._begin_ns, end_ns, tuple(self._claim_templates))

    def _admitted(
        self, resource: WatchedResource, raw: dict[str, Any], path: Path, *, keep: bool = False
    ) -> Object:
        """The object as the API server stores it; ``keep`` makes it visible to other objects."""
        name = qualified(resource.value.plural, resource.value.group)
        try:
            try:
                served = self._cluster.resource(name)
            except KeyError:
                # A custom resource without a CustomResourceDefinition.
                return decode(resource, msgspec.json.encode(_identified(resource, raw)))
            namespace = str(_mapping(raw, "metadata").get("namespace") or "default")
            check_fields(served, raw, "Strict")
            if keep:
                stored = self._cluster.create(name, raw, namespace=namespace)
            else:
                namespace = namespace if served.namespaced else ""
                copy = msgspec.json.decode(msgspec.json.encode(raw))
                stored = self._cluster.api.create(served, namespace, copy, dry_run=True).obj
            return decode(resource, msgspec.json.encode(stored))
        except StatusError as error:
            message = error.message
        except DecodeError as error:
            message = str(error)
        self._problems.append(Problem(path, message))
        raise _RejectedError

    def _objects(self) -> Iterator[TraceEvent]:
        """The objects at the start except nodes and pods; referenced objects come first."""
        scenario = self._scenario
        for name in SYSTEM_NAMESPACES:
            yield self._existing(Resource.NAMESPACES, name)
        for name in SYSTEM_PRIORITY_CLASSES:
            yield self._existing(Resource.PRIORITY_CLASSES, name)
        for name, value in scenario.priority_classes.items():
            raw = {"metadata": {"name": name}, "value": value}
            yield from self._added(Resource.PRIORITY_CLASSES, raw, ("priorityClasses", name))
        for index, raw in enumerate(scenario.objects):
            if raw.get("kind") == "Namespace":
                yield from self._declared(index, raw)
        for number, group in enumerate(scenario.pods):
            if self._cluster.api.find("namespaces", "", group.namespace) is None:
                raw = {"metadata": {"name": group.namespace}}
                yield from self._added(Resource.NAMESPACES, raw, ("pods", number, "namespace"))
        for index, raw in enumerate(scenario.objects):
            if raw.get("kind") != "Namespace":
                yield from self._declared(index, raw)

    def _declared(self, index: int, raw: dict[str, Any]) -> Iterator[TraceEvent]:
        kind, version = raw.get("kind"), raw.get("apiVersion")
        if (kind, version) == ("ResourceClaimTemplate", "resource.k8s.io/v1"):
            self._claim_template(index, raw)
            return
        for resource in (*Resource, *GroupResource):
            found = resource.value
            older = [found.of_version(other).api_version for other in found.other_versions]
            same = kind == found.kind and version in (found.api_version, *older)
            if same and kind not in ("Pod", "Node"):
                yield from self._added(resource, raw, ("objects", index))
                return
        what = f"{quote(version)} {quote(kind)} is not a kind that affects scheduling"
        if kind in ("Pod", "Node"):
            what = f"expected a {kind} in a group under {kind.lower()}s"
        self._problems.append(Problem(("objects", index, "kind"), what))

    def _claim_template(self, index: int, raw: dict[str, Any]) -> None:
        """Keep the claim of a template."""
        metadata = _mapping(raw, "metadata")
        namespace = str(metadata.get("namespace") or "default")
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": metadata.get("name"), "namespace": namespace},
            "spec": _mapping(_mapping(raw, "spec"), "spec"),
        }
        try:
            found = self._admitted(Resource.RESOURCE_CLAIMS, claim, ("objects", index))
        except _RejectedError:
            return
        assert isinstance(found, ResourceClaim)
        self._claim_templates.append(found)

    def _check_claims(self, pod: Pod, path: Path) -> None:
        """Nothing creates the claims of a pod later: it would wait without a message."""
        templates = {template.key for template in self._claim_templates}
        for index, reference in enumerate(pod.spec.resource_claims):
            name, template = reference.resource_claim_name, reference.resource_claim_template_name
            missing = ""
            if template and f"{pod.namespace}/{template}" not in templates:
                missing = f"ResourceClaimTemplate {pod.namespace}/{template}"
            elif name and self._cluster.api.find(CLAIMS, pod.namespace, name) is None:
                missing = f"ResourceClaim {pod.namespace}/{name}"
            if missing:
                self._problems.append(Problem((*path, index), f"{missing} is not in objects"))

    def _added(
        self, resource: WatchedResource, raw: dict[str, Any], path: Path
    ) -> Iterator[TraceEvent]:
        try:
            yield self._set(self._admitted(resource, raw, path, keep=True))
        except _RejectedError:
            return

    def _existing(self, resource: WatchedResource, name: str) -> TraceEvent:
        raw = self._cluster.get(resource.value.plural, name)
        return self._set(decode(resource, msgspec.json.encode(raw)))

    def _set(self, item: Object, at_ns: int | None = None) -> TraceEvent:
        return ObjectSet(self._begin_ns if at_ns is None else at_ns, cast("AnyObject", item))

    def _node_events(self, group: NodeGroup, path: Path) -> Iterator[TraceEvent]:
        joins_ns = self._begin_ns + _ns(group.joins)
        for index in range(group.count):
            name = f"{group.name}-{index}"
            labels = dict(group.labels)
            if group.zones:
                labels[ZONE_LABEL] = group.zones[index % len(group.zones)]
            allocatable = {k: str(v) for k, v in group.allocatable.items()}
            raw = simulated_node(name, capacity=allocatable, labels=labels, index=index)
            if group.taints:
                raw["spec"]["taints"] = [msgspec.to_builtins(taint) for taint in group.taints]
            try:
                node = self._admitted(Resource.NODES, raw, path)
            except _RejectedError:
                return
            assert isinstance(node, Node)
            metadata = msgspec.structs.replace(
                node.metadata, uid=f"node-{name}", creation_timestamp=api_time(joins_ns)
            )
            node = msgspec.structs.replace(node, metadata=metadata)
            self._nodes[name] = node
            yield self._set(node, joins_ns)

    def _template(self, group: ScenarioPodGroup, path: Path) -> Pod:
        unknown = [key for key in group.template if key not in ("metadata", "spec")]
        for key in unknown:
            message = "unknown field; expected one of metadata, spec"
            self._problems.append(Problem((*path, key), message))
        metadata = {
            **_mapping(group.template, "metadata"),
            "name": f"{group.name}-0",
            "namespace": group.namespace,
        }
        spec = {"schedulerName": self._scheduler_name, **_mapping(group.template, "spec")}
        raw = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        pod = self._admitted(Resource.PODS, raw, path)
        if unknown:
            raise _RejectedError
        assert isinstance(pod, Pod)
        return pod

    def _pod_events(self, group: ScenarioPodGroup, template: Pod) -> Iterator[PodCreated]:
        # A generator per group: a change of one group does not affect the draws of others.
        random = Random(f"{self._scenario.seed}/{group.namespace}/{group.name}")
        times = _arrivals(group.arrival, group.count, random)
        for index, after_ns in enumerate(times):
            name, at_ns = f"{group.name}-{index}", self._begin_ns + after_ns
            if after_ns > MAX_RUN_NS:
                raise _TooLateError
            metadata = msgspec.structs.replace(
                template.metadata,
                name=name,
                uid=f"pod-{group.namespace}-{name}",
                creation_timestamp=api_time(at_ns),
            )
            pod = msgspec.structs.replace(template, metadata=metadata)
            run_ns = None if group.lifetime is None else _draw(group.lifetime, random)
            yield PodCreated(at_ns, pod, run_ns, group.restarts)

    def _expand_event(self, event: ScenarioEvent) -> Iterator[TraceEvent]:
        at_ns, (what, name) = self._begin_ns + _ns(event.at), event.what
        match what:
            case "drain":
                yield NodeDrained(at_ns, name)
            case "remove":
                yield ObjectRemoved(at_ns, "Node", name)
            case "cordon" | "uncordon":
                node = self._nodes[name]
                spec = msgspec.structs.replace(node.spec, unschedulable=what == "cordon")
                yield self._set(msgspec.structs.replace(node, spec=spec), at_ns)
            case "deletePods":
                for created in self._created[name]:
                    if created.at_ns <= at_ns:
                        yield PodDeleted(at_ns, created.pod.key, created.pod.metadata.uid)


def _identified(resource: WatchedResource, raw: dict[str, Any]) -> dict[str, Any]:
    """A custom resource in stored form."""
    metadata = _mapping(raw, "metadata")
    found = resource.value
    namespace = {"namespace": metadata.get("namespace") or "default"} if found.namespaced else {}
    uid = "-".join((found.plural, *namespace.values(), str(metadata.get("name"))))
    return {**raw, "metadata": {**metadata, **namespace, "uid": uid}}


def _arrivals(arrival: Arrival, count: int, random: Random) -> Iterator[int]:
    """The arrival time of each pod, in nanoseconds from the start."""
    at_ns = _ns(arrival.after)
    if arrival.poisson is not None:
        at_ns += _exponential(_ns(arrival.poisson), random)
    for number in range(1, count + 1):
        yield at_ns
        if number % arrival.together:
            continue
        if arrival.every is not None:
            at_ns += _ns(arrival.every)
        elif arrival.poisson is not None:
            at_ns += _exponential(_ns(arrival.poisson), random)


def _draw(lifetime: Lifetime, random: Random) -> int:
    """The running time of one pod, in nanoseconds."""
    if lifetime.uniform is not None:
        low_ns, high_ns = _ns(lifetime.uniform.low), _ns(lifetime.uniform.high)
        return low_ns + _whole_ms(random.random() * (high_ns - low_ns))
    if lifetime.lognormal is not None:
        # Box-Muller transform: only random() is the same in every version of Python.
        radius = math.sqrt(-2 * math.log(1 - random.random()))
        normal = radius * math.cos(2 * math.pi * random.random())
        factor = math.exp(lifetime.lognormal.sigma * normal)
        return _whole_ms(_ns(lifetime.lognormal.median) * factor)
    if lifetime.exponential is not None:
        return _exponential(_ns(lifetime.exponential), random)
    assert lifetime.fixed is not None
    return _ns(lifetime.fixed)


def _exponential(mean_ns: int, random: Random) -> int:
    return _whole_ms(-math.log(1 - random.random()) * mean_ns)


def _whole_ms(duration_ns: float) -> int:
    """Whole milliseconds; the last digits of logarithms differ between machines."""
    return min(MAX_RUN_NS, round(duration_ns / 1_000_000) * 1_000_000)


def _ns(duration: timedelta) -> int:
    return duration // _US * 1000


def _mapping(raw: dict[str, Any], field: str) -> dict[str, Any]:
    """A mapping field; other values are rejected later by the API server's validation."""
    value = raw.get(field)
    return value if isinstance(value, dict) else {}
