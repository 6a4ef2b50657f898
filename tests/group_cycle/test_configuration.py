"""The configuration of group cycles: arguments, and what excludes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from asched.config.file import ConfigFileError, load
from asched.config.registry import PluginRegistry

PROFILE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint:
        enabled: [{name: GangScheduling}]
    pluginConfig:
      - name: GangScheduling
        args: {groupCycle: true, groupPreemption: %s}
"""
EXTENDER = """
extenders:
  - urlPrefix: http://127.0.0.1:1/
    filterVerb: filter
"""


def errors(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as raised:
        load(path, PluginRegistry.discover())
    return str(raised.value).splitlines()


def test_extenders_exclude_group_cycles(tmp_path: Path) -> None:
    found = errors(tmp_path, PROFILE % "false" + EXTENDER)
    why = "groupCycle of GangScheduling is not possible with extenders: set it to false"
    assert found == [f"{tmp_path / 'config.yaml'}: profile default-scheduler: {why}"]


def test_group_preemption_needs_group_cycle(tmp_path: Path) -> None:
    text = (PROFILE % "true").replace("groupCycle: true", "groupCycle: false")
    (found,) = errors(tmp_path, text)
    assert found.endswith("groupPreemption: Invalid value: true: needs groupCycle")
