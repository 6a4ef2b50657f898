"""Parsing and effects of ``--plugins``."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from asched.audit.lookup import AuditError
from asched.audit.whatif.candidate import (
    PluginChange,
    PluginChangeAction,
    parse_changes,
    with_changes,
)
from asched.config.file import load
from asched.config.registry import PluginRegistry
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    Arguments,
    ExtensionPoint,
    PreScorePlugin,
    QueueSortPlugin,
    ScorePlugin,
)
from asched.framework.nodes import NodeInfo, Nodes
from asched.framework.pod_info import PodInfo, QueuedPod
from asched.framework.runtime.profile import PluginWeight, ProfileSpec
from asched.framework.status import SUCCESS, Status


class Liking(Arguments, frozen=True):
    name: str = "n0"


class Likes(PreScorePlugin, ScorePlugin):
    name: ClassVar[str] = "Likes"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[Liking]] = Liking

    def pre_score(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 0


class Needy(Likes):
    class Needs(Arguments, frozen=True):
        what: str

    name: ClassVar[str] = "Needy"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[Any] = Needs


class LastComeFirst(QueueSortPlugin):
    name: ClassVar[str] = "LastComeFirst"
    api_version: ClassVar[int] = 1

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.added_at_ns > second.added_at_ns


INSTALLED = PluginRegistry.discover()
REGISTRY = PluginRegistry(
    {name: INSTALLED.load(name) for name in INSTALLED.names}
    | {plugin.name: plugin for plugin in (Likes, Needy, LastComeFirst)}
)
DEFAULTS = load(None, REGISTRY).profiles


def changed(text: str) -> ProfileSpec:
    [spec] = with_changes(DEFAULTS, parse_changes(text), REGISTRY)
    return spec


def names_at(spec: ProfileSpec, point: ExtensionPoint) -> list[str]:
    return [entry.name for entry in spec.plugins_at(point)]


def test_parsed_changes() -> None:
    assert parse_changes("A=5, +B,-C,D") == (
        PluginChange(PluginChangeAction.WEIGH, "A", 5),
        PluginChange(PluginChangeAction.ENABLE, "B"),
        PluginChange(PluginChangeAction.DISABLE, "C"),
        PluginChange(PluginChangeAction.ENABLE, "D"),
    )


def test_change_of_weight() -> None:
    spec = changed("NodeResourcesFit=5")
    assert PluginWeight("NodeResourcesFit", 5) in spec.plugins_at(ExtensionPoint.SCORE)
    [before] = DEFAULTS
    assert names_at(spec, ExtensionPoint.SCORE) == names_at(before, ExtensionPoint.SCORE)
    assert (spec.arguments, spec.origins) == (before.arguments, before.origins)
    assert changed("NodeResourcesFit=1") == before


def test_disabled_plugin() -> None:
    spec = changed("-NodeResourcesFit")
    assert "NodeResourcesFit" not in spec.plugin_names
    assert "NodeResourcesFit" not in spec.arguments
    assert all(origin.name != "NodeResourcesFit" for origin in spec.origins)
    # A weight enables it again, only at Score.
    scored = changed("-NodeResourcesFit,NodeResourcesFit=2")
    assert names_at(scored, ExtensionPoint.SCORE)[-1] == "NodeResourcesFit"
    assert "NodeResourcesFit" not in names_at(scored, ExtensionPoint.FILTER)
    assert scored.arguments["NodeResourcesFit"] == DEFAULTS[0].arguments["NodeResourcesFit"]


def test_enabled_plugin() -> None:
    spec = changed("+Likes")
    assert names_at(spec, ExtensionPoint.SCORE)[-1] == "Likes"
    assert names_at(spec, ExtensionPoint.PRE_SCORE)[-1] == "Likes"
    assert "Likes" not in names_at(spec, ExtensionPoint.FILTER)
    assert spec.arguments["Likes"] == {"name": "n0"}
    assert [origin.name for origin in spec.origins] == sorted(o.name for o in spec.origins)
    assert changed("+Likes,Likes") == spec


def test_enabled_queue_sort_replaces_the_previous() -> None:
    assert names_at(changed("+LastComeFirst"), ExtensionPoint.QUEUE_SORT) == ["LastComeFirst"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", 'invalid change ""; expected Name=WEIGHT, +Name or -Name'),
        ("A,,B", 'invalid change ""'),
        ("--A", 'invalid change "--A"'),
        ("A=", 'invalid weight "" for A; expected a whole number from 1 to'),
        ("A=0", 'invalid weight "0"'),
        ("A=1.5", 'invalid weight "1.5"'),
        ("A=²", 'invalid weight "²"'),
        ("A=99999999999", "invalid weight"),
        ("-A=2", '"-A=2" disables a plugin, so it cannot have a weight'),
        ("NodeResorcesFit=2", "unknown plugin .* did you mean NodeResourcesFit?"),
        ("-NodeResorcesFit", "did you mean NodeResourcesFit?"),
        ("NodeName=2", "plugin NodeName is not a Score plugin"),
        ("-Likes", "-Likes: no profile enables it"),
        ("-PrioritySort", "would have no QueueSort plugin"),
        ("-DefaultBinder", "would have no Bind plugin"),
        ("+Needy", "plugin Needy requires arguments; set them in a file for --config"),
    ],
)
def test_invalid_change_is_rejected(text: str, complaint: str) -> None:
    with pytest.raises(
        AuditError, match=complaint.replace("+", r"\+").replace("²", "\\S")
    ) as found:
        changed(text)
    assert "\n" not in str(found.value)


def test_changes_require_a_profile() -> None:
    assert with_changes((), (), REGISTRY) == ()
    with pytest.raises(AuditError, match="there is no profile"):
        with_changes((), parse_changes("+Likes"), REGISTRY)
