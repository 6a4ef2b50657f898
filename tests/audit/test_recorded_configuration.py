"""The recorded configuration as a file: reading it gives what was recorded."""

from __future__ import annotations

import pytest

from asched.audit.lookup import AuditError
from asched.audit.recorded_configuration import recorded_configuration
from asched.config.file import Configuration, parse
from asched.core.scheduler import SchedulerCore
from asched.simulator.loop import Latencies, scheduler_from_config
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ProfilesLoaded
from tests.audit.recording import REGISTRY

CONFIGURATIONS = {
    "defaults": "",
    "changed": """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 3
podMaxBackoffSeconds: 30
profiles:
  - schedulerName: packing
    percentageOfNodesToScore: 40
    plugins:
      score:
        disabled: [{name: ImageLocality}]
        enabled: [{name: NodeResourcesFit, weight: 7}]
    pluginConfig:
      - name: NodeResourcesFit
        args: {scoringStrategy: {type: MostAllocated}}
      - name: InterPodAffinity
        args: {hardPodAffinityWeight: 3}
  - schedulerName: second
---
apiVersion: asched.dev/v1
kind: AschedConfiguration
engine: {unschedulableFlushInterval: 90s}
featureGates: {SchedulerPopFromBackoffQ: false}
""",
}


def state_of(configuration: Configuration) -> ClusterState:
    scheduler = scheduler_from_config(configuration, Latencies())
    core = SchedulerCore(Fold(ClusterState(), REGISTRY.load))
    core.begin_turn(1)
    gates = scheduler.feature_gates
    core.apply(ProfilesLoaded(scheduler.profiles, scheduler.queue, feature_gates=gates))
    return core.state


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_file_gives_the_recorded_configuration(name: str) -> None:
    recorded = parse(CONFIGURATIONS[name], name, REGISTRY, empty_is_defaults=True)
    text = recorded_configuration(state_of(recorded))
    again = parse(text, "again", REGISTRY)
    assert again.warnings == ()
    assert scheduler_from_config(again, Latencies()) == scheduler_from_config(recorded, Latencies())


def test_nothing_is_recorded() -> None:
    with pytest.raises(AuditError, match="no configuration up to that time"):
        recorded_configuration(ClusterState())
