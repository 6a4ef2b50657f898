"""Plugins that are missing or broken at the start: refused in one line, or done without."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from asched.config.file import ConfigFileError, parse
from asched.config.registry import PluginRegistry
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.interface import FilterPlugin
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import ProfileError
from asched.framework.status import SUCCESS, Status
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import ProfilesLoaded
from tests.daemon.world import KUBE, OWN, registry_with, world

BREAKS = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: Breaks}]}}\n"
OPTIONAL = (
    f"---\n{OWN}plugins: [{{name: Breaks, optional: true}}, {{name: Gone, optional: true}}]\n"
)
WITH_GONE = BREAKS.replace("[{name: Breaks}]", "[{name: Breaks}, {name: Gone}]")


PLACE = "(daemon/test_plugin_start.py:41)"


class Breaks(FilterPlugin):
    """Cannot be made."""

    name: ClassVar[str] = "Breaks"
    api_version: ClassVar[int] = 1

    def __init__(self, args: object, handle: Handle) -> None:
        raise OSError("no licence server")

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS


async def test_failing_plugin_constructor_is_one_line_at_start(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        with pytest.raises(ExceptionGroup) as refusal:
            async with w.daemon(BREAKS, Breaks):
                raise AssertionError("it must not run")
    (cause,) = refusal.value.exceptions
    assert isinstance(cause, ProfileError)
    assert str(cause) == f"plugin Breaks: it cannot be made: OSError: no licence server {PLACE}"


def test_start_error_names_the_distribution() -> None:
    registry = PluginRegistry(
        {n: registry_with().load(n) for n in registry_with().names} | {"Breaks": Breaks},
        distribution="broken-plugins", version="0.3",
    )  # fmt: skip
    configuration = parse(BREAKS, "file", registry)
    fold = Fold(ClusterState(), registry.load)
    fold.apply(ProfilesLoaded(configuration.profiles))
    (profile,) = fold.state.profiles.values()
    assert profile.missing == (
        "plugin Breaks of broken-plugins 0.3: it cannot be made: OSError: no licence server"
        f" {PLACE}"
    )


def test_missing_plugin_is_rejected() -> None:
    with pytest.raises(ConfigFileError) as refusal:
        parse(WITH_GONE, "file", registry_with(Breaks))
    assert 'unknown plugin "Gone"' in refusal.value.lines[0]


async def test_missing_optional_plugin_is_skipped(tmp_path: Path) -> None:
    config = WITH_GONE + OPTIONAL
    configuration = parse(config, "file", registry_with(Breaks))
    missing, broken = configuration.warnings
    assert missing.startswith('file: without optional plugin Gone: unknown plugin "Gone";')
    assert broken == (
        "file: profile default-scheduler: without optional plugin Breaks: OSError: no licence"
        " server"
    )
    assert {"Breaks", "Gone"}.isdisjoint(configuration.profiles[0].plugin_names)
    async with world(tmp_path, nodes=1) as w, w.daemon(config, Breaks):
        w.add_pod("p")
        await w.until(lambda: w.node_of("p") == "n0")


def test_settings_of_disabled_plugin_are_warned_about() -> None:
    configuration = parse(f"{OWN}plugins: [{{name: Gone}}]\n", "file", registry_with())
    assert configuration.warnings == (
        "file: plugins: no effect: plugin Gone is enabled in no profile",
    )
