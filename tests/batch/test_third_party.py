"""Third-party session plugins and actions."""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from asched.batch.registry import SessionRegistry, SessionRegistryError
from asched.batch.session import run_session
from asched.framework.session_plugins import ACTION_GROUP, PLUGIN_GROUP
from asched.framework.sessions import Compatibility, PluginOption
from tests.batch.worlds import REGISTRY, World, bound, session_spec

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "smallest_first.py"
BUILT_IN_PLUGINS = (
    "conformance", "drf", "gang", "nodeorder", "predicates", "priority", "proportion",
)  # fmt: skip


@pytest.fixture
def example() -> Any:
    spec = importlib.util.spec_from_file_location("smallest_first", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def registry_with(example: Any) -> SessionRegistry:
    plugins = {name: REGISTRY.plugin(name) for name in REGISTRY.plugin_names}
    actions = {name: REGISTRY.action(name) for name in REGISTRY.action_names}
    return SessionRegistry(
        {**plugins, "smallestfirst": example.SmallestFirst}, {**actions, "spread": example.Spread}
    )


def test_kube_batch_plugins_are_installed() -> None:
    assert set(BUILT_IN_PLUGINS) <= set(REGISTRY.plugin_names)
    assert {"allocate", "backfill", "preempt", "reclaim"} <= set(REGISTRY.action_names)


def test_example_plugin_orders_jobs(example: Any) -> None:
    world = World()
    world.node("n", cpu=3)
    world.queue("q")
    world.job("large", "q", pods=3, minimum=3)
    world.job("small", "q", pods=2, minimum=2)
    tiers = (("smallestfirst", "gang"), ("predicates",))
    spec = session_spec("allocate", tiers=tiers)
    outcome = run_session(world.state, spec, registry_with(example), 1)
    assert set(bound(outcome)) == {"ns/small-0", "ns/small-1"}
    capped = PluginOption("smallestfirst", (), {"limit": "2"})
    spec = session_spec("allocate", tiers=((capped, "gang"), ("predicates",)))
    outcome = run_session(world.state, spec, registry_with(example), 1)
    assert set(bound(outcome)) == {"ns/large-0", "ns/large-1", "ns/large-2"}


def test_example_action_places_pods(example: Any) -> None:
    world = World()
    world.node("small", cpu=2)
    world.node("large", cpu=8)
    world.queue("q")
    world.job("a", "q", pods=2)
    world.job("gang", "q", pods=2, minimum=2)
    spec = session_spec("spread", tiers=(("gang",), ("predicates",)))
    outcome = run_session(world.state, spec, registry_with(example), 1)
    assert bound(outcome) == {"ns/a-0": "large"}


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(SessionRegistryError, match='unknown session plugin "Gang"; did you mean'):
        REGISTRY.plugin("Gang")
    with pytest.raises(SessionRegistryError, match='unknown action "enqueue"; expected one of'):
        REGISTRY.action("enqueue")
    world = World()
    spec = session_spec("allocate", tiers=(("Gang",),))
    with pytest.raises(SessionRegistryError):
        world.hold(spec)


def test_compatibility_mode_skips_unknown_plugins() -> None:
    world = World()
    world.node("n")
    world.queue("q")
    world.job("j", "q", pods=1)
    kube_batch = Compatibility.KUBE_BATCH
    outcome = world.hold(session_spec("allocate", tiers=(("Gang",),), compatibility=kube_batch))
    assert bound(outcome) == {"ns/j-0": "n"}


@pytest.mark.parametrize(
    ("group", "value", "complaint"),
    [
        (PLUGIN_GROUP, "asched.batch.no_such_module:X", "importing .* failed"),
        (PLUGIN_GROUP, "asched.batch.session:run_session", "is not a class derived from"),
        (
            PLUGIN_GROUP,
            "asched.batch.plugins.jobs:GangSessionPlugin",
            "the name attribute of .* differs",
        ),
        (
            ACTION_GROUP,
            "asched.batch.plugins.jobs:GangSessionPlugin",
            "is not a class derived from Action",
        ),
    ],
)
def test_invalid_plugin_is_rejected(group: str, value: str, complaint: str) -> None:
    registry = SessionRegistry({}, {}, [EntryPoint("mine", value, group)])
    ask = registry.plugin if group == PLUGIN_GROUP else registry.action
    with pytest.raises(SessionRegistryError, match=complaint):
        ask("mine")


def test_ambiguous_name_is_rejected() -> None:
    twice = [
        EntryPoint("gang", f"asched.batch.plugins.{module}", PLUGIN_GROUP)
        for module in ("gang:Gang", "drf:Drf")
    ]
    registry = SessionRegistry({}, {}, twice)
    with pytest.raises(SessionRegistryError, match="uninstall all but one"):
        registry.plugin("gang")
