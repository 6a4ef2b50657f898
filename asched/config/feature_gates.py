"""The feature gates of kube-scheduler 1.36: stages, defaults, and what asched does with them.

A value that asched cannot honour is an error, so that a configuration of kube-scheduler never means
something else here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from asched.config.registry import PluginRegistry
from asched.framework.feature_gates import FeatureGates
from asched.framework.runtime.profile import ProfileError
from asched.framework.runtime.strict import Problem, quote, suggestion

FIELD: Final = "featureGates"


class Stage(Enum):
    ALPHA = "alpha"
    BETA = "beta"
    GA = "GA"


class Support(Enum):
    """What a value of the gate changes in asched."""

    DECISIONS = "decisions"
    """It has the effect that it has in kube-scheduler."""
    PLUGIN = "plugin"
    """As DECISIONS, if the plugin in ``Gate.plugin`` declares it in ``honors_gates``."""
    NOTHING = "nothing"
    """Both values lead to the same decisions."""
    FIXED = "fixed"
    """Only the default is possible."""


class Gate(NamedTuple):
    """A gate of kube-scheduler 1.36."""

    name: str
    stage: Stage
    default: bool
    support: Support
    note: str
    """What it changes, or why it cannot be changed."""
    locked: bool = False
    """kube-scheduler accepts only the default."""
    plugin: str = ""
    requires: tuple[str, ...] = ()
    """Gates that must be on if this one is."""

    @property
    def field(self) -> str:
        """The name of the field of :class:`FeatureGates`."""
        return "".join(
            f"_{letter.lower()}" if _begins_word(self.name, at) else letter.lower()
            for at, letter in enumerate(self.name)
        )


def _begins_word(name: str, at: int) -> bool:
    """Whether a word of a name such as ``DRAAdminAccess`` begins at this letter."""
    if at == 0 or not name[at].isupper():
        return False
    after = name[at + 1 : at + 2]
    return name[at - 1].islower() or after.islower()


def _ga(name: str, note: str) -> Gate:
    return Gate(name, Stage.GA, True, Support.FIXED, note, locked=True)


def _missing(name: str, note: str, *requires: str) -> Gate:
    """An alpha feature that asched does not have."""
    return Gate(name, Stage.ALPHA, False, Support.FIXED, note, requires=requires)


def _dra(name: str, note: str, *requires: str, stage: Stage = Stage.BETA) -> Gate:
    return Gate(
        name,
        stage,
        True,
        Support.PLUGIN,
        note,
        plugin="DynamicResources",
        requires=("DynamicResourceAllocation", *requires),
    )


GATES: Final = (
    Gate(
        "DRAAdminAccess",
        Stage.GA,
        True,
        Support.FIXED,
        "admin access to devices in use",
        locked=True,
        plugin="DynamicResources",
    ),
    _dra("DRAConsumableCapacity", "devices that several claims share"),
    _dra(
        "DRADeviceBindingConditions",
        "PreBind waits for the conditions of devices",
        "DRAResourceClaimDeviceStatus",
    ),
    Gate(
        "DRADeviceTaintRules",
        Stage.BETA,
        False,
        Support.PLUGIN,
        "taints from DeviceTaintRules",
        plugin="DynamicResources",
        requires=("DRADeviceTaints",),
    ),
    _dra("DRADeviceTaints", "taints of devices"),
    _dra("DRAExtendedResource", "extended resources backed by devices"),
    _missing("DRAListTypeAttributes", "list attributes of devices are not implemented"),
    _missing("DRANodeAllocatableResources", "claims do not count for node resources"),
    _dra("DRAPartitionableDevices", "counters shared by devices"),
    _dra("DRAPrioritizedList", "`firstAvailable` requests", stage=Stage.GA),
    Gate(
        "DRAResourceClaimDeviceStatus",
        Stage.BETA,
        True,
        Support.PLUGIN,
        "`status.devices` of claims",
        plugin="DynamicResources",
    ),
    _dra("DRASchedulerFilterTimeout", "a limit for the search on one node"),
    _missing(
        "DRAWorkloadResourceClaims", "claims of pod groups are not implemented", "GenericWorkload"
    ),
    _ga("DynamicResourceAllocation", "ResourceClaims"),
    Gate(
        "GangScheduling",
        Stage.ALPHA,
        False,
        Support.DECISIONS,
        "the plugin GangScheduling is among the default plugins (docs/how-to/gang.md)",
        requires=("GenericWorkload",),
    ),
    Gate(
        "GenericWorkload",
        Stage.ALPHA,
        False,
        Support.NOTHING,
        "PodGroups are read if a profile schedules gangs",
    ),
    Gate(
        "InPlacePodLevelResourcesVerticalScaling",
        Stage.BETA,
        True,
        Support.DECISIONS,
        "pod-level resources in `status` count while a pod is resized in place",
        requires=("InPlacePodVerticalScaling", "NodeDeclaredFeatures", "PodLevelResources"),
    ),
    _ga("InPlacePodVerticalScaling", "resources of containers in `status` count"),
    _ga("MatchLabelKeysInPodAffinity", "the API server merges the labels into the selector"),
    Gate(
        "MatchLabelKeysInPodTopologySpread",
        Stage.BETA,
        True,
        Support.DECISIONS,
        "`matchLabelKeys` of topology spread constraints",
    ),
    Gate(
        "MatchLabelKeysInPodTopologySpreadSelectorMerge",
        Stage.BETA,
        True,
        Support.NOTHING,
        "the API server merges the labels; asched adds those that it did not merge",
        requires=("MatchLabelKeysInPodTopologySpread",),
    ),
    Gate(
        "NodeDeclaredFeatures",
        Stage.BETA,
        True,
        Support.DECISIONS,
        "the default plugin NodeDeclaredFeatures",
    ),
    _ga("NodeInclusionPolicyInPodTopologySpread", "`nodeAffinityPolicy` and `nodeTaintsPolicy`"),
    Gate(
        "NominatedNodeNameForExpectation",
        Stage.BETA,
        True,
        Support.DECISIONS,
        "`nominatedNodeName` is written before Permit or PreBind waits",
    ),
    Gate(
        "OpportunisticBatching",
        Stage.BETA,
        True,
        Support.NOTHING,
        "results are always shared between pods of one shape, which changes no decision",
    ),
    Gate(
        "PodLevelResources",
        Stage.BETA,
        True,
        Support.DECISIONS,
        "`spec.resources` of pods counts",
    ),
    Gate(
        "SchedulerAsyncAPICalls",
        Stage.BETA,
        False,
        Support.NOTHING,
        "writes to the API server never delay a decision",
    ),
    Gate(
        "SchedulerAsyncPreemption",
        Stage.BETA,
        True,
        Support.FIXED,
        "a victim is evicted after the decision is recorded, never during it",
    ),
    Gate(
        "SchedulerPopFromBackoffQ",
        Stage.BETA,
        True,
        Support.DECISIONS,
        "rejected pods that back off are scheduled early while no pod is active; members of gangs"
        " are not",
    ),
    _ga("SchedulerQueueingHints", "hints decide which events requeue a pod"),
    _ga("SidecarContainers", "restartable init containers"),
    _missing("StorageCapacityScoring", "VolumeBinding does not score storage capacity"),
    _missing(
        "TaintTolerationComparisonOperators",
        "tolerations with the operators Lt and Gt are not implemented",
    ),
    _missing(
        "TopologyAwareWorkloadScheduling",
        "`groupCycle` of GangScheduling instead (docs/how-to/gang.md)",
        "GenericWorkload",
    ),
    _ga("VolumeAttributesClass", "VolumeAttributesClasses of claims"),
    _missing("VolumeLimitScaling", "a node without a CSI driver is not limited"),
    _missing(
        "WorkloadAwarePreemption",
        "`groupPreemption` of GangScheduling instead (docs/how-to/gang.md)",
        "GangScheduling",
    ),
)
"""The gates that kube-scheduler reads, and those that other gates require, by name."""

BY_NAME: Final = {gate.name: gate for gate in GATES}
ALL_ALPHA: Final = "AllAlpha"
ALL_BETA: Final = "AllBeta"
_ALL: Final = {ALL_ALPHA: Stage.ALPHA, ALL_BETA: Stage.BETA}


class GateFlagError(ValueError):
    """The value of ``--feature-gates`` is invalid; the text is one line."""


def parse_flag(text: str) -> dict[str, bool]:
    """The gates of ``A=true,B=false``. Raises :class:`GateFlagError`."""
    found: dict[str, bool] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or value.lower() not in _VALUES:
            raise GateFlagError(f"{quote(part)} is not NAME=true or NAME=false")
        found[name] = _VALUES[value.lower()]
    return found


_VALUES: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""As in Go's ``strconv.ParseBool``."""


def resolve_gates(
    given: Mapping[str, bool], registry: PluginRegistry
) -> tuple[FeatureGates, list[Problem]]:
    """The gates of a configuration, with the problems of those that cannot be honoured."""
    problems = [*_unknown(given)]
    values = _values(given)
    problems += [
        _problem(given, gate.name, why)
        for gate in GATES
        if gate.name in values and (why := _impossible(gate, values[gate.name], registry))
    ]
    if not problems:
        problems += _unmet(given, values)
    fields = FeatureGates.__struct_fields__
    named = {BY_NAME[name].field: value for name, value in values.items()}
    return FeatureGates(**{f: value for f, value in named.items() if f in fields}), problems


def _unknown(given: Mapping[str, bool]) -> Iterator[Problem]:
    names = (*BY_NAME, *_ALL)
    for name in given:
        if name not in names:
            hint = suggestion(name, names)
            if not hint.startswith("did"):
                hint = "docs/reference/compatibility.md lists those that are"
            yield Problem((FIELD, name), f"not a feature gate of kube-scheduler 1.36; {hint}")


def _values(given: Mapping[str, bool]) -> dict[str, bool]:
    """The gates that are set, with AllAlpha and AllBeta replaced by those that they set."""
    values: dict[str, bool] = {}
    for name, stage in _ALL.items():
        if name in given:
            values |= {
                gate.name: given[name]
                for gate in GATES
                if gate.stage is stage and gate.default is not given[name]
            }
    return values | {name: value for name, value in given.items() if name in BY_NAME}


def _problem(given: Mapping[str, bool], name: str, why: str) -> Problem:
    """``why`` at the setting that sets the gate."""
    if name in given:
        return Problem((FIELD, name), why)
    setting = next(each for each, stage in _ALL.items() if stage is BY_NAME[name].stage)
    return Problem((FIELD, setting), f"{name}: {why}")


def _impossible(gate: Gate, value: bool, registry: PluginRegistry) -> str | None:
    """Why the gate cannot have the value."""
    shown = "true" if value else "false"
    if gate.locked and value is not gate.default:
        locked = "true" if gate.default else "false"
        return f"cannot be {shown}: it is locked to {locked} in Kubernetes 1.36"
    if value is gate.default:
        return None
    if gate.support is Support.FIXED:
        return f"cannot be {shown}: {gate.note}"
    if gate.support is Support.PLUGIN and gate.name not in honored_gates(gate.plugin, registry):
        return f"cannot be {shown}: plugin {gate.plugin} of this installation does not honor it"
    return None


def honored_gates(plugin: str, registry: PluginRegistry) -> frozenset[str]:
    """The gates that the installed plugin declares; none if it cannot be loaded."""
    try:
        return registry.load(plugin).honors_gates if plugin in registry else frozenset()
    except ProfileError:
        return frozenset()


def _unmet(given: Mapping[str, bool], values: Mapping[str, bool]) -> Iterator[Problem]:
    """Gates that are on and require one that is off; kube-scheduler does not start with them."""
    for gate in GATES:
        if not values.get(gate.name, gate.default):
            continue
        for name in gate.requires:
            if not values.get(name, BY_NAME[name].default):
                where = gate.name if gate.name in given else name
                yield _problem(
                    given, where, f"{gate.name} requires {name}; set both to the same value"
                )
