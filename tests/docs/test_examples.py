"""The example plugins of the documentation, in a running daemon."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asched.config.registry import PluginRegistry
from asched.framework.interface import Plugin
from tests.daemon.world import KUBE, World, world

DOCS = Path(__file__).parents[2] / "docs"
ZONE = "topology.kubernetes.io/zone"


def example(module: str, name: str) -> type[Plugin]:
    """A plugin class of ``docs/examples``, validated against the plugin contract."""
    spec = importlib.util.spec_from_file_location(module, DOCS / "examples" / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    # msgspec evaluates the annotations of arguments in their module.
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    found: type[Plugin] = getattr(loaded, name)
    return PluginRegistry().including(found).load(name)


def profile_of(name: str, **arguments: Any) -> str:
    """The default profile with this plugin as the only score plugin."""
    profile = {
        "plugins": {
            "multiPoint": {"enabled": [{"name": name}]},
            "score": {"disabled": [{"name": "*"}], "enabled": [{"name": name, "weight": 3}]},
        },
        "pluginConfig": [{"name": name, "args": arguments}] if arguments else [],
    }
    return KUBE + f"profiles: {json.dumps([profile])}\n"


def add_service(w: World, name: str) -> None:
    w.cluster.create(
        "services",
        {
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
        },
    )


async def placed(w: World, count: int, labels: dict[str, str], config: str, *plugins: Any) -> Any:
    """The number of pods on each node, after ``count`` pods in sequence."""
    async with w.daemon(config, *plugins):
        for number in range(count):
            w.add_pod(f"p-{number}", labels=labels)
            await w.until(lambda: not w.unbound())
    return Counter(w.node_of(f"p-{number}") for number in range(count))


async def test_selector_spread_spreads_over_zones_first(tmp_path: Path) -> None:
    plugin = example("selector_spread", "SelectorSpread")
    async with world(tmp_path) as w:
        for name, zone in {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}.items():
            w.add_node(name, **{ZONE: zone})
        add_service(w, "web")
        config = profile_of("SelectorSpread")
        found = await placed(w, 3, {"app": "web"}, config, plugin)
    # Without zones, the second pod might share the zone of the first one.
    assert found["b1"] == 1
    assert sorted(found[name] for name in ("a1", "a2", "a3")) == [0, 1, 1]


async def test_selector_spread_without_zones(tmp_path: Path) -> None:
    plugin = example("selector_spread", "SelectorSpread")
    async with world(tmp_path, nodes=3) as w:
        add_service(w, "web")
        config = profile_of("SelectorSpread")
        found = await placed(w, 6, {"app": "web"}, config, plugin)
    assert found == {"n0": 2, "n1": 2, "n2": 2}


async def test_service_affinity_keeps_to_one_region_and_spreads_over_racks(tmp_path: Path) -> None:
    plugin = example("service_affinity", "ServiceAffinity")
    async with world(tmp_path) as w:
        for region in ("east", "west"):
            for rack in ("r1", "r2"):
                w.add_node(f"{region}-{rack}", region=region, rack=rack)
        add_service(w, "db")
        config = profile_of(
            "ServiceAffinity", affinityLabels=["region"], antiAffinityLabels=["rack"]
        )
        found = await placed(w, 4, {"app": "db"}, config, plugin)
        (region,) = {name.partition("-")[0] for name in found}
        assert found == {f"{region}-r1": 2, f"{region}-r2": 2}
        other = "west" if region == "east" else "east"
        async with w.daemon(config, plugin):
            w.add_pod("stray", labels={"app": "db"}, nodeSelector={"rack": "none"})
            await w.until(lambda: bool(w.message("stray")))
            assert w.message("stray").startswith("0/4 nodes are available: ")
            w.add_pod("bound-elsewhere", labels={"app": "db"}, nodeSelector={"region": other})
            await w.until(lambda: w.node_of("bound-elsewhere").startswith(other))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*/*.md")), ids=lambda page: page.name)
def test_linked_files_exist(page: Path) -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / name).exists(), f"{page.name} points to {name}"


@pytest.mark.parametrize(
    "file",
    sorted([*(DOCS / "examples").glob("*.py"), *DOCS.parent.glob("plugins/*/src/**/*.py")]),
    ids=lambda file: file.stem,
)
def test_plugins_import_public_names_only(file: Path) -> None:
    modules = re.findall(r"^\s*(?:from|import) (asched\b[\w.]*)", file.read_text(), re.M)
    assert set(modules) <= {"asched.framework", "asched.model"}
