"""Feature gates: what a configuration may set, and what they change."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from asched.config.feature_gates import BY_NAME, GATES, GateFlagError, parse_flag, resolve_gates
from asched.config.file import ConfigFileError, Configuration, parse
from asched.config.registry import PluginRegistry
from asched.daemon.reload.reconfigurer import profiles_record
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.feature_gates import FeatureGates
from asched.framework.interface import PreFilterPlugin, PreFilterResult
from asched.framework.nodes import Nodes
from asched.framework.pod_info import PodInfo
from asched.model.pod import (
    Container,
    Pod,
    ResourceRequirements,
    TopologySpreadConstraint,
)
from asched.model.quantity import QuantityText
from asched.model.selectors import LabelSelector
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.plugins.pod_topology_spread import PodTopologySpread
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.observe import observe_object
from asched.state.records import Assigned, ObjectObserved, ProfilesLoaded
from tests.cycle.scheduling import Scheduling, the_one
from tests.state.objects import a_node, a_pod
from tests.state.profiles import a_fold, loader, profile_of

HEAD = "apiVersion: asched.dev/v1\nkind: AschedConfiguration\n"
PLUGINS = PluginRegistry.discover()


def read(gates: str = "{}", flag: str = "") -> Configuration:
    return parse(f"{HEAD}featureGates: {gates}\n", "f", PLUGINS, parse_flag(flag))


def errors(gates: str = "{}", flag: str = "") -> tuple[str, ...]:
    with pytest.raises(ConfigFileError) as caught:
        read(gates, flag)
    return caught.value.lines


def test_each_field_is_a_gate_with_its_default() -> None:
    gates = {gate.field: gate.default for gate in GATES}
    for field in msgspec.structs.fields(FeatureGates):
        assert gates[field.name] is field.default, field.name


def test_gates_are_sorted_and_require_known_ones() -> None:
    assert [gate.name for gate in GATES] == sorted(BY_NAME)
    assert {name for gate in GATES for name in gate.requires} <= BY_NAME.keys()
    default, problems = resolve_gates({gate.name: gate.default for gate in GATES}, PLUGINS)
    assert (default, problems) == (FeatureGates(), [])


def test_gates_of_the_file_are_recorded() -> None:
    configuration = read("{SchedulerPopFromBackoffQ: false, SchedulerAsyncAPICalls: true}")
    gates = FeatureGates(scheduler_pop_from_backoff_q=False)
    assert configuration.feature_gates == gates
    assert profiles_record(configuration).feature_gates == gates


def test_option_overrides_the_file() -> None:
    found = read("{PodLevelResources: false}", "PodLevelResources=true,NodeDeclaredFeatures=1")
    assert found.feature_gates == FeatureGates()
    without = parse("", "f", PLUGINS, {"SchedulerPopFromBackoffQ": False}, empty_is_defaults=True)
    assert not without.feature_gates.scheduler_pop_from_backoff_q


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (
            "{SchedulerPopFromBackOff: true}",
            "not a feature gate of kube-scheduler 1.36; did you mean SchedulerPopFromBackoffQ?",
        ),
        (
            "{KubeletTracing: true}",
            (
                "not a feature gate of kube-scheduler 1.36;"
                " docs/reference/compatibility.md lists those that are"
            ),
        ),
        (
            "{SchedulerQueueingHints: false}",
            "cannot be false: it is locked to true in Kubernetes 1.36",
        ),
        (
            "{TopologyAwareWorkloadScheduling: true}",
            "cannot be true: `groupCycle` of GangScheduling instead (docs/how-to/gang.md)",
        ),
        (
            "{SchedulerAsyncPreemption: false}",
            "cannot be false: a victim is evicted after the decision is recorded, never during it",
        ),
        (
            "{GangScheduling: true}",
            "GangScheduling requires GenericWorkload; set both to the same value",
        ),
        (
            "{NodeDeclaredFeatures: false}",
            (
                "InPlacePodLevelResourcesVerticalScaling requires NodeDeclaredFeatures;"
                " set both to the same value"
            ),
        ),
        ("{PodLevelResources: 1}", "expected true or false, got 1"),
    ],
)
def test_impossible_gate_is_one_line(gates: str, message: str) -> None:
    name = gates.strip("{}").partition(":")[0]
    assert errors(gates) == (f"f:3: document 1: featureGates.{name}: {message}",)


def test_impossible_gate_of_the_option_is_named() -> None:
    assert errors(flag="SidecarContainers=false") == (
        (
            "--feature-gates: SidecarContainers: cannot be false: it is locked to true in"
            " Kubernetes 1.36"
        ),
    )


def test_all_gates_of_a_stage() -> None:
    assert read("{AllAlpha: false, AllBeta: true}", "DRADeviceTaintRules=false")
    assert all(" featureGates.AllAlpha: " in line for line in errors("{AllAlpha: true}"))
    (line,) = [x for x in errors("{AllBeta: false}") if "SchedulerAsyncPreemption" in x]
    assert line.endswith(
        "featureGates.AllBeta: SchedulerAsyncPreemption: cannot be false: a victim is evicted after"
        " the decision is recorded, never during it"
    )


@pytest.mark.parametrize("text", ["A", "A=", "A=yes", "=true=1"])
def test_invalid_option(text: str) -> None:
    with pytest.raises(GateFlagError, match="is not NAME=true or NAME=false"):
        parse_flag(text)


class Honoring(PreFilterPlugin):
    """Reads a gate in the place of DynamicResources."""

    name: ClassVar[str] = "DynamicResources"
    api_version: ClassVar[int] = 1
    honors_gates: ClassVar[frozenset[str]] = frozenset({"DRADeviceTaints"})

    def __init__(self, args: None, handle: Handle) -> None:
        super().__init__(args, handle)
        self.taints = handle.feature_gates.dra_device_taints

    def pre_filter(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> PreFilterResult:
        return PreFilterResult()


def test_plugin_reads_the_gates_that_it_honors() -> None:
    registry = PLUGINS.including(Honoring)
    gates, problems = resolve_gates({"DRADeviceTaints": False}, registry)
    assert not problems
    fold = a_fold(Honoring, gates=gates)
    plugin = fold.state.profiles["default-scheduler"].plugins["DynamicResources"]
    assert isinstance(plugin, Honoring)
    assert not plugin.taints
    _, problems = resolve_gates({"DRAConsumableCapacity": False}, registry)
    assert [problem.message for problem in problems] == [
        "cannot be false: plugin DynamicResources of this installation does not honor it"
    ]


def test_checkpoint_keeps_the_gates() -> None:
    fold = a_fold(gates=FeatureGates(dra_device_taints=False))
    assert restore(
        checkpoint_of(fold.state), loader()
    ).state.plugin_context.feature_gates == FeatureGates(dra_device_taints=False)


# -- default plugins ------------------------------------------------------------------------------


def test_gates_of_default_plugins() -> None:
    off = "{NodeDeclaredFeatures: false, InPlacePodLevelResourcesVerticalScaling: false}"
    names = read(off).profiles[0].plugin_names
    assert "NodeDeclaredFeatures" not in names
    assert "GangScheduling" not in names
    on = read("{GenericWorkload: true, GangScheduling: true}")
    assert "GangScheduling" in on.profiles[0].plugin_names


def test_plugin_of_a_gate_that_is_off_cannot_be_enabled() -> None:
    text = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- plugins:\n    multiPoint:\n      enabled:\n"
        "      - name: NodeDeclaredFeatures\n"
    )
    flag = "NodeDeclaredFeatures=false,InPlacePodLevelResourcesVerticalScaling=false"
    with pytest.raises(ConfigFileError) as caught:
        parse(text, "f", PLUGINS, parse_flag(flag))
    assert caught.value.lines == (
        (
            "f:7: document 1: profiles[0].plugins.multiPoint.enabled[0].name:"
            " plugin NodeDeclaredFeatures needs the feature gate NodeDeclaredFeatures"
        ),
    )


# -- matchLabelKeys -------------------------------------------------------------------------------


def spread(name: str, revision: str, on: str = "") -> Pod:
    """A pod that is spread over zones among the pods of its revision."""
    plain = a_pod(name, {}, labels={"app": "x", "revision": revision}, on=on)
    constraint = TopologySpreadConstraint(
        topology_key="zone",
        label_selector=LabelSelector(match_labels={"app": "x"}),
        match_label_keys=("revision", "absent"),
    )
    spec = msgspec.structs.replace(plain.spec, topology_spread_constraints=(constraint,))
    return msgspec.structs.replace(plain, spec=spec)


@pytest.mark.parametrize(
    ("gates", "feasible"),
    [
        (FeatureGates(), {"1": 1, "2": 2}),
        (FeatureGates(match_label_keys_in_pod_topology_spread=False), {"1": 1, "2": 1}),
    ],
)
def test_match_label_keys_that_the_api_server_did_not_merge(
    gates: FeatureGates, feasible: dict[str, int]
) -> None:
    for revision, nodes in feasible.items():
        scheduling = Scheduling(PodTopologySpread, gates=gates)
        scheduling.see(*(a_node(zone, labels={"zone": zone}) for zone in ("a", "b")))
        scheduling.see(spread("old", "1", on="a"), spread("p", revision))
        assigned = the_one(scheduling.decide())
        assert isinstance(assigned, Assigned)
        assert assigned.feasible_nodes == nodes


# -- pod-level resources --------------------------------------------------------------------------


def pod_with_resources() -> Pod:
    """Requests 1 cpu in its container, 2 at pod level, and has 3 after a resize."""
    plain, replace = a_pod("p", on="n0"), msgspec.structs.replace
    small: dict[str, QuantityText] = {"cpu": "1"}
    large: dict[str, QuantityText] = {"cpu": "2"}
    container = Container(name="c", resources=ResourceRequirements(requests=small))
    return replace(
        plain,
        spec=replace(
            plain.spec,
            containers=(container,),
            resources=ResourceRequirements(requests=large),
        ),
        status=replace(plain.status, resources=ResourceRequirements(requests={"cpu": "3"})),
    )


@pytest.mark.parametrize(
    ("gates", "milli_cpu"),
    [
        (FeatureGates(), 3000),
        (FeatureGates(in_place_pod_level_resources_vertical_scaling=False), 2000),
        (FeatureGates(pod_level_resources=False), 1000),
    ],
)
def test_pod_level_resources(gates: FeatureGates, milli_cpu: int) -> None:
    spec = profile_of(NodeResourcesFit)
    fold = a_fold(NodeResourcesFit)
    fold.apply(ProfilesLoaded((spec,), feature_gates=gates))
    fold.apply(ObjectObserved(a_node("n0")))
    seen = observe_object(fold.state, pod_with_resources())
    assert seen is not None
    fold.apply(seen)
    assert fold.state.pods["default/p"].info.shape.requests["cpu"] == milli_cpu
    # The same object again changes nothing.
    assert observe_object(fold.state, pod_with_resources()) is None
    # A simulation of recorded history under other gates folds the recorded object.
    replayed = a_fold(NodeResourcesFit, gates=gates)
    replayed.apply(ObjectObserved(a_node("n0")))
    replayed.apply(ObjectObserved(pod_with_resources()))
    assert replayed.state.pods["default/p"].info.shape.requests["cpu"] == milli_cpu
