"""Converts a legacy Policy into a KubeSchedulerConfiguration.

Predicates and priorities become plugins with the mapping and order of the legacy registry of
kube-scheduler 1.22. Later features (scheduling gates, resource claims ...) keep their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from asched.config.file import ConfigFileError, parse, parse_yaml, read_text
from asched.config.kube_scheduler import API_VERSION, KIND, decode_with_problems
from asched.config.policy import KIND as POLICY_KIND
from asched.config.policy import Policy, PredicatePolicy, PriorityPolicy, decode_policy
from asched.config.registry import PluginRegistry
from asched.config.resolve import default_plugins
from asched.framework.interface import ExtensionPoint
from asched.framework.runtime.strict import Path, Problem, nearest, quote

_FIT: Final = "NodeResourcesFit"
_LABELS: Final = "CheckNodeLabelPresence"

_PREDICATES: Final[Mapping[str, tuple[str, ...]]] = {
    "CheckNodeUnschedulable": ("NodeUnschedulable",),
    "GeneralPredicates": (_FIT, "NodeName", "NodePorts", "NodeAffinity"),
    "HostName": ("NodeName",),
    "PodFitsHostPorts": ("NodePorts",),
    "MatchNodeSelector": ("NodeAffinity",),
    "PodFitsResources": (_FIT,),
    "NoDiskConflict": ("VolumeRestrictions",),
    "PodToleratesNodeTaints": ("TaintToleration",),
    _LABELS: (),
    "CheckServiceAffinity": (),
    "MaxEBSVolumeCount": ("NodeVolumeLimits",),
    "MaxGCEPDVolumeCount": ("NodeVolumeLimits",),
    "MaxCSIVolumeCountPred": ("NodeVolumeLimits",),
    "MaxAzureDiskVolumeCount": ("NodeVolumeLimits",),
    "MaxCinderVolumeCount": ("NodeVolumeLimits",),
    "CheckVolumeBinding": ("VolumeBinding",),
    "NoVolumeZoneConflict": ("VolumeZone",),
    "EvenPodsSpread": ("PodTopologySpread",),
    "MatchInterPodAffinity": ("InterPodAffinity",),
}
"""Plugins by predicate, in the order in which predicates ran."""

_OTHER_NAMES: Final = {
    "PodFitsPorts": "PodFitsHostPorts",
    "ServiceSpreadingPriority": "SelectorSpreadPriority",
}

_MANDATORY: Final = ("CheckNodeUnschedulable", "PodToleratesNodeTaints")
_NOT_DEFAULT: Final = (
    "HostName",
    "PodFitsHostPorts",
    "MatchNodeSelector",
    "PodFitsResources",
    _LABELS,
    "CheckServiceAffinity",
    "MaxCinderVolumeCount",
)
"""Predicates that a policy without predicates does not mean."""

_RATIO: Final = "RequestedToCapacityRatio"
_SPREADING: Final = ("EvenPodsSpreadPriority", "SelectorSpreadPriority")
_PRIORITIES: Final[Mapping[str, str]] = {
    "BalancedResourceAllocation": "NodeResourcesBalancedAllocation",
    "EvenPodsSpreadPriority": "PodTopologySpread",
    "ImageLocalityPriority": "ImageLocality",
    "InterPodAffinityPriority": "InterPodAffinity",
    "LeastRequestedPriority": _FIT,
    "MostRequestedPriority": _FIT,
    "NodeAffinityPriority": "NodeAffinity",
    _RATIO: _FIT,
    "SelectorSpreadPriority": "PodTopologySpread",
    "TaintTolerationPriority": "TaintToleration",
}
"""Plugin by priority, in the order of the legacy registry."""

_DEFAULT_PRIORITIES: Final[Mapping[str, int]] = {
    "BalancedResourceAllocation": 1,
    "EvenPodsSpreadPriority": 2,
    "ImageLocalityPriority": 1,
    "InterPodAffinityPriority": 1,
    "LeastRequestedPriority": 1,
    "NodeAffinityPriority": 1,
    "NodePreferAvoidPodsPriority": 10000,
    "SelectorSpreadPriority": 1,
    "TaintTolerationPriority": 1,
}

_STRATEGIES: Final = {
    "LeastRequestedPriority": "LeastAllocated",
    "MostRequestedPriority": "MostAllocated",
    _RATIO: _RATIO,
}

_EXAMPLES: Final = "docs/how-to/map-reduce-priorities.md shows it as a plugin"
_NO_COUNTERPART: Final[Mapping[str, str]] = {
    "CheckServiceAffinity": f"no counterpart; {_EXAMPLES}",
    "NodePreferAvoidPodsPriority": (
        "no counterpart: the annotation scheduler.alpha.kubernetes.io/preferAvoidPods is no longer"
        " read; taint such nodes with the effect PreferNoSchedule"
    ),
    "EqualPriority": "omitted: it had no effect",
}

_FILTERING: Final = (
    ExtensionPoint.PRE_FILTER,
    ExtensionPoint.FILTER,
    ExtensionPoint.RESERVE,
    ExtensionPoint.PRE_BIND,
)
_SCORING: Final = (ExtensionPoint.PRE_SCORE, ExtensionPoint.SCORE)


class ConvertedPolicy(NamedTuple):
    text: str
    """A configuration file in YAML, with the notices as comments."""
    notices: tuple[str, ...]
    """Settings without an exact counterpart, a line each."""


def convert_policy(path: FilePath, registry: PluginRegistry) -> ConvertedPolicy:
    """Convert a policy file, in JSON or YAML.

    Raises :class:`ConfigFileError` with all errors.
    """
    return convert_policy_text(read_text(path), str(path), registry)


def convert_policy_text(text: str, name: str, registry: PluginRegistry) -> ConvertedPolicy:
    """As :func:`convert_policy`, from text; ``name`` is the file in messages."""
    documents = parse_yaml(text, name)
    if len(documents) != 1:
        raise ConfigFileError(
            [f"{name}: expected one document of kind {POLICY_KIND}, got {len(documents)}"]
        )
    (document,) = documents

    def lines(problems: Iterable[Problem]) -> list[str]:
        return [f"{name}:{line}: {problem}" for line, problem in document.located(problems)]

    policy, problems = decode_policy(document.value)
    if policy is None:
        raise ConfigFileError(lines([*document.problems, *problems]))
    converter = _Converter(policy, registry)
    converted = converter.document()
    # Extenders have the same paths in both documents.
    _, found = decode_with_problems(converted)
    problems += [*converter.problems, *(p for p in found if p.path[:1] == ("extenders",))]
    if document.problems or problems:
        raise ConfigFileError(lines([*document.problems, *problems]))
    notices = lines(converter.notices)
    body = yaml.safe_dump(converted, sort_keys=False, allow_unicode=True, width=100)
    # A valid policy may hold values that current plugins reject.
    parse(body, f"{name}: converted", registry)
    comments = "".join(
        f"# {' '.join(line.split())}\n" for line in (f"Converted from {name}", *notices)
    )
    return ConvertedPolicy(comments + body, tuple(notices))


class _Converter:
    def __init__(self, policy: Policy, registry: PluginRegistry) -> None:
        self._policy = policy
        self._registry = registry
        self.notices: list[Problem] = []
        self.problems: list[Problem] = []
        self._points: dict[ExtensionPoint, dict[str, int]] = {}
        self._arguments: dict[str, dict[str, Any]] = {}

    def document(self) -> dict[str, Any]:
        policy = self._policy
        self._predicates()
        self._priorities()
        if policy.hard_pod_affinity_symmetric_weight:
            weight = policy.hard_pod_affinity_symmetric_weight
            self._arguments["InterPodAffinity"] = {"hardPodAffinityWeight": weight}
        if policy.always_check_all_predicates:
            where: Path = ("alwaysCheckAllPredicates",)
            self._notice(
                where, "no counterpart: the first filter that rejects a node is the last one to run"
            )
        profile: dict[str, Any] = {"schedulerName": "default-scheduler", "plugins": self._plugins()}
        enabled = {name for plugins in self._points.values() for name in plugins}
        arguments = [
            {"name": name, "args": args}
            for name, args in sorted(self._arguments.items())
            if name in enabled
        ]
        if arguments:
            profile["pluginConfig"] = arguments
        document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "profiles": [profile]}
        if policy.extenders:
            document["extenders"] = [extender.converted() for extender in policy.extenders]
        return document

    def _notice(self, path: Path, message: str) -> None:
        self.notices.append(Problem(path, message))

    def _predicates(self) -> None:
        given = self._policy.predicates
        places: dict[str, Path] = {}
        if given is None:
            places = {name: ("predicates",) for name in _PREDICATES if name not in _NOT_DEFAULT}
        for index, predicate in enumerate(given or ()):
            path: Path = ("predicates", index)
            name = self._predicate_name(predicate, path)
            if name in _NO_COUNTERPART:
                self._notice((*path, "name"), f"{quote(predicate.name)}: {_NO_COUNTERPART[name]}")
            elif name:
                places.setdefault(name, path)
        for name in _MANDATORY:
            places.setdefault(name, ("predicates",))
        for name, plugins in _PREDICATES.items():
            if name in places:
                for plugin in plugins:
                    self._enable(plugin, _FILTERING, places[name])
        self._required_labels()

    def _predicate_name(self, predicate: PredicatePolicy, path: Path) -> str:
        """Its name in the legacy registry; empty, with a problem, if there is none."""
        name = _old_name(predicate.name)
        if name in _PREDICATES:
            return name
        if predicate.argument is None:
            return self._unknown(predicate.name, "predicate", _PREDICATES, path)
        return "CheckServiceAffinity" if predicate.argument.service_affinity else _LABELS

    def _required_labels(self) -> None:
        """Convert ``labelsPresence`` to an affinity that is added to every pod's."""
        expressions = []
        for index, predicate in enumerate(self._policy.predicates or ()):
            presence = predicate.argument.labels_presence if predicate.argument else None
            path: Path = ("predicates", index)
            if predicate.argument is not None and _old_name(predicate.name) in _PREDICATES:
                self._notice((*path, "argument"), "omitted: it had no effect under this name")
                continue
            if presence is None:
                continue
            self._enable("NodeAffinity", _FILTERING, path)
            operator = "Exists" if presence.presence else "DoesNotExist"
            expressions += [{"key": label, "operator": operator} for label in presence.labels]
            self._notice(
                path,
                f"{quote(predicate.name)} became the addedAffinity of NodeAffinity, which also"
                " applies the node selectors and affinities of pods",
            )
        if expressions:
            terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            self._arguments["NodeAffinity"] = {"addedAffinity": required}

    def _priorities(self) -> None:
        given = self._policy.priorities
        places: dict[str, tuple[Path, int]] = {}
        if given is None:
            places = {
                name: (("priorities",), weight) for name, weight in _DEFAULT_PRIORITIES.items()
            }
        for index, priority in enumerate(given or ()):
            path: Path = ("priorities", index)
            name = self._priority_name(priority, path)
            if name in places:
                self._notice(path, f"{quote(priority.name)} is repeated: the last one counts")
            if name:
                places[name] = path, priority.weight
        for name, (path, _) in places.items():
            if name in _NO_COUNTERPART:
                where = path if given is None else (*path, "name")
                self._notice(where, f"{name}: {_NO_COUNTERPART[name]}")
        self._spreading(places)
        strategy = ""
        for name, plugin in _PRIORITIES.items():
            if name not in places:
                continue
            path, weight = places[name]
            if name in _STRATEGIES:
                if strategy:
                    self._notice(
                        path, f"{name} has no counterpart with {strategy}: {_FIT} has one strategy"
                    )
                    continue
                strategy = name
            self._enable(plugin, _SCORING, path, weight)
        self._strategy(strategy)

    def _priority_name(self, priority: PriorityPolicy, path: Path) -> str:
        """Its name in the legacy registry; empty if there is none."""
        name = _old_name(priority.name)
        argument = priority.argument
        if name != _RATIO and (name in _PRIORITIES or name in _NO_COUNTERPART):
            return name
        if argument is None and name == _RATIO:
            missing = "required: requestedToCapacityRatioArguments"
            self.problems.append(Problem((*path, "argument"), missing))
            return ""
        if argument is None:
            return self._unknown(priority.name, "priority", _PRIORITIES, path)
        if argument.requested_to_capacity_ratio_arguments is not None:
            return _RATIO
        kind = "serviceAntiAffinity" if argument.service_anti_affinity else "labelPreference"
        what = {
            "serviceAntiAffinity": f"no counterpart; {_EXAMPLES}, and PodTopologySpread with"
            " defaultConstraints spreads over any label",
            "labelPreference": "no counterpart; a preferred addedAffinity of NodeAffinity is"
            " similar,"
            " with the weight of NodeAffinity",
        }
        self._notice((*path, "argument", kind), f"{quote(priority.name)}: {what[kind]}")
        return ""

    def _spreading(self, places: Mapping[str, tuple[Path, int]]) -> None:
        """Convert two priorities to one plugin, with the weight of the first. Pods without
        constraints are spread only with the second."""
        even, selector = (places.get(name) for name in _SPREADING)
        if selector is not None:
            self._arguments["PodTopologySpread"] = {"defaultingType": "System"}
        elif even is not None:
            self._arguments["PodTopologySpread"] = {"defaultingType": "List"}
        if even is not None and selector is not None and even[1] != selector[1]:
            self._notice(
                selector[0],
                f"SelectorSpreadPriority is part of PodTopologySpread, with the weight {even[1]} of"
                f" EvenPodsSpreadPriority instead of {selector[1]}",
            )

    def _strategy(self, priority: str) -> None:
        if priority not in _STRATEGIES:
            return
        cpu_and_memory = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
        strategy: dict[str, Any] = {"type": _STRATEGIES[priority], "resources": cpu_and_memory}
        ratios = [
            p.argument.requested_to_capacity_ratio_arguments
            for p in self._policy.priorities or ()
            if p.argument is not None
        ]
        ratio = next((r for r in reversed(ratios) if r is not None), None)
        if priority == _RATIO and ratio is not None:
            shape = msgspec.to_builtins(ratio.shape)
            strategy["requestedToCapacityRatio"] = {"shape": shape}
            if ratio.resources:
                strategy["resources"] = [
                    {"name": resource.name, "weight": resource.weight or 1}
                    for resource in ratio.resources
                ]
        self._arguments[_FIT] = {"scoringStrategy": strategy}

    def _unknown(self, name: str, kind: str, known: Iterable[str], path: Path) -> str:
        guess = nearest(name, (*known, *_OTHER_NAMES))
        hint = f"; did you mean {guess}?" if guess else ""
        self.problems.append(Problem((*path, "name"), f"unknown {kind} {quote(name)}{hint}"))
        return ""

    def _enable(
        self, plugin: str, points: Iterable[ExtensionPoint], path: Path, weight: int = 0
    ) -> None:
        if plugin not in self._registry:
            self._notice(path, f"plugin {plugin} is not provided by this installation")
            return
        served = self._registry.load(plugin)
        for point in points:
            if point.served_by(served):
                own = weight if point is ExtensionPoint.SCORE else 0
                self._points.setdefault(point, {}).setdefault(plugin, own)

    def _plugins(self) -> dict[str, Any]:
        converted = {*chain(*_PREDICATES.values()), *_PRIORITIES.values()}
        always = [ref for ref in default_plugins(self._registry) if ref.name not in converted]
        multi_point = [_reference(ref.name, ref.weight) for ref in always]
        plugins: dict[str, Any] = {
            "multiPoint": {"enabled": multi_point, "disabled": [{"name": "*"}]}
        }
        for point in ExtensionPoint:
            if point in self._points:
                enabled = [_reference(*entry) for entry in self._points[point].items()]
                plugins[point.field] = {"enabled": enabled}
        return plugins


def _old_name(name: str) -> str:
    return _OTHER_NAMES.get(name, name)


def _reference(name: str, weight: int) -> dict[str, Any]:
    return {"name": name, **({"weight": weight} if weight else {})}
