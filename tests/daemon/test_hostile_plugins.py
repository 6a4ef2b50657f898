"""Hostile plugins: the healthy profile keeps scheduling, and the plugins are reported."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.daemon import hostile_plugins
from tests.daemon.hostile_plugins import HOSTILE
from tests.daemon.processes import Command, commands, running
from tests.daemon.test_reloader import hang_up, until_applied
from tests.daemon.world import KUBE, OWN, World, world

HEALTHY_PODS = 40
SETTINGS = OWN + (
    "health: {address: '127.0.0.1:0'}\nlog: {format: json}\nengine: {pluginTimeLimit: 300ms}\n"
    "plugins: [{name: NeverReturns, timeLimit: 500ms}]\n"
)
FAILURES = {
    ("Raises", "Filter", "raised"),
    ("Recurses", "Filter", "raised"),
    ("NotANumber", "Score", "invalid_answer"),
    ("OutOfRange", "Score", "invalid_answer"),
    ("Mutates", "Filter", "raised"),
    ("Exits", "PreFilter", "exited"),
    ("Interrupts", "Permit", "exited"),
    ("StopsTheLoop", "Filter", "not_permitted"),
    ("ClosesTheLoop", "PreBind", "raised"),
    ("CancelsOthers", "PreBind", "not_permitted"),
    ("LeaksTasks", "PreBind", "leaked_task"),
    ("Trespasses", "PreBind", "not_permitted"),
    ("NeverReturns", "Worker", "timeout"),
}
OVERRUNS = {("Sleeps", "Filter"), ("BlocksTheLoop", "PreBind")}
PLACED = {"Sleeps", "CancelsOthers", "LeaksTasks", "BlocksTheLoop"}
"""They harm other pods, but their own pods are placed."""


@pytest.fixture
def hostile_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed as pip does it, so that commands find it."""
    site = tmp_path / "site"
    info = site / "hostile-1.0.dist-info"
    info.mkdir(parents=True)
    assert hostile_plugins.__file__ is not None
    (site / "hostile.py").write_text(Path(hostile_plugins.__file__).read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    points = "".join(f"{plugin.name} = hostile:{plugin.__name__}\n" for plugin in HOSTILE)
    (info / "entry_points.txt").write_text(f"[asched.plugins]\n{points}")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")


def config_file(folder: Path) -> Path:
    """A healthy profile, and a profile for each hostile plugin."""
    profiles: list[dict[str, object]] = [{"schedulerName": "default-scheduler"}]
    for plugin in HOSTILE:
        enabled = {"multiPoint": {"enabled": [{"name": plugin.name}]}}
        profiles.append({"schedulerName": plugin.name.lower(), "plugins": enabled})
    path = folder / "config.yaml"
    path.write_text(
        KUBE + msgspec.yaml.encode({"profiles": profiles}).decode() + "---\n" + SETTINGS
    )
    return path


def sleeper(plugin_time_limit: str, plugins: str = "") -> str:
    return (
        f"{KUBE}profiles: [{{plugins: {{multiPoint: {{enabled: [{{name:"
        f" Sleeps}}]}}}}}}]\n---\n{OWN}"
        "health: {address: '127.0.0.1:0'}\nlog: {format: json}\n"
        f"engine: {{pluginTimeLimit: {plugin_time_limit}}}\nplugins: [{plugins}]\n"
    )


@pytest.mark.usefixtures("hostile_distribution")
async def test_reload_changes_loop_time_limit(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(sleeper("1h"))
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        arguments = (
            "run", "--kubeconfig", str(w.kubeconfig), "--config", str(config),
            "--journal", str(w.journal),
        )  # fmt: skip
        async with running(made, *arguments) as command:

            async def overruns_of(pod: str) -> str:
                w.add_pod(pod)
                await w.until(lambda: bool(w.node_of(pod)))
                counter = r"^asched_plugin_overruns_total{.*Sleeps.*} (.*)$"
                return "".join(re.findall(counter, await metrics_of(command), re.MULTILINE))

            assert await overruns_of("patient") == ""
            config.write_text(sleeper("1h", "{name: Sleeps, timeLimit: 200ms}"))
            await hang_up(command)
            await until_applied(command, 1)
            assert await overruns_of("named") == "1.0"
            config.write_text(sleeper("200ms"))
            await hang_up(command)
            await until_applied(command, 2)
            assert await overruns_of("like-all") == "2.0"
            config.write_text(sleeper("1h"))
            await hang_up(command)
            await until_applied(command, 3)
            assert await overruns_of("patient-again") == "2.0"


async def metrics_of(command: Command) -> str:
    started = [json.loads(line) for line in command.lines if '"scheduling"' in line]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{started[0]['health']}/metrics") as answer,
    ):
        return await answer.text()


def labels(metrics: str, name: str, *wanted: str) -> set[tuple[str, ...]]:
    """The labels of a counter's samples that are not 0."""
    found = set()
    for line in re.findall(rf"^{name}_total\{{(.*)\}} [1-9]", metrics, re.MULTILINE):
        values = dict(re.findall(r'(\w+)="([^"]*)"', line))
        found.add(tuple(values[label] for label in wanted))
    return found


def settled(w: World) -> bool:
    """Everybody healthy is placed, and of every hostile plugin's pod something is known."""
    healthy = all(w.node_of(f"healthy-{number}") for number in range(HEALTHY_PODS))
    return healthy and all(
        w.node_of(plugin.name.lower()) if plugin.name in PLACED else w.message(plugin.name.lower())
        for plugin in HOSTILE
    )


@pytest.mark.usefixtures("hostile_distribution")
async def test_hostile_plugins_do_not_affect_healthy_profile(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2) as w, commands(tmp_path) as made:
        arguments = (
            "run", "--kubeconfig", str(w.kubeconfig), "--config", str(config_file(tmp_path)),
            "--journal", str(w.journal),
        )  # fmt: skip
        for number in range(HEALTHY_PODS // 2):
            w.add_pod(f"healthy-{number}")
        for plugin in HOSTILE:
            w.add_pod(plugin.name.lower(), schedulerName=plugin.name.lower())
        async with running(made, *arguments) as command:
            await w.until(lambda: w.node_of("healthy-0") != "")
            # More pods arrive meanwhile.
            for number in range(HEALTHY_PODS // 2, HEALTHY_PODS):
                w.add_pod(f"healthy-{number}")
            await w.until(lambda: settled(w))
            metrics = await metrics_of(command)
            for plugin in HOSTILE:
                said = w.message(plugin.name.lower())
                assert plugin.name in PLACED or plugin.name in said, (plugin.name, said)
            command.send(signal.SIGTERM)
            assert await made.ended(command) == 0, command.output
        failed = labels(metrics, "asched_plugin_failures", "plugin", "extension_point", "reason")
        assert failed >= FAILURES, FAILURES - failed
        assert labels(metrics, "asched_plugin_overruns", "plugin", "extension_point") >= OVERRUNS
