"""SIGHUP and changed files, as an operator meets them: real processes, real files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.typing import EventDict

from asched.config.file import ConfigFileError, Configuration, load
from asched.config.registry import PluginRegistry
from asched.daemon.reload.reloader import (
    ConfigApplied,
    ConfigFile,
    ConfigReloader,
    ReconfigurationError,
    ReloadRequests,
)
from asched.daemon.telemetry.health import ServiceManager
from asched.daemon.telemetry.scheduler_metrics import ReloadMetrics
from tests.daemon.processes import Command, Commands, commands, running
from tests.daemon.test_run_command import logged, stopped, until_logged
from tests.daemon.world import KUBE, OWN, TIMEOUT_S, World, world
from tests.kube.harness import ManualClock
from tests.systemd.test_notify import Manager
from tests.systemd.unit import one

HEALTH = "---\n" + OWN + "health: {address: '127.0.0.1:0'}\nlog: {format: json}\n"
GOOD = "new configuration applied"
REFUSED = "new configuration rejected"


def serving(*names: str) -> str:
    """A configuration that serves these scheduler names."""
    entries = "".join(f"- {{schedulerName: {name}}}\n" for name in names)
    return f"{KUBE}profiles:\n{entries}{HEALTH}"


def arguments(w: World, config: Path) -> list[str]:
    options = ("--kubeconfig", w.kubeconfig, "--journal", w.journal, "--config", config)
    return ["run", *map(str, options)]


def events(command: Command, name: str) -> list[dict[str, Any]]:
    return [line for line in logged(command) if line["event"] == name]


async def metrics(command: Command) -> str:
    (line,) = events(command, "scheduling")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{line['health']}/metrics") as answer,
    ):
        return await answer.text()


async def verify(made: Commands, w: World) -> None:
    """A replay of the journal repeats every decision byte by byte."""
    for check in (("replay", "--verify"), ("journal", "verify")):
        command = await made.start(*check, "--journal", str(w.journal))
        assert await made.ended(command) == 0, command.output


async def until_applied(command: Command, times: int) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while command.output.count(GOOD) < times:  # noqa: ASYNC110  a file has no event
            await anyio.sleep(0.01)


async def hang_up(command: Command) -> None:
    """Reload like ``systemctl reload``."""
    await anyio.run_process(one("Service.ExecReload").replace("$MAINPID", str(command.pid)).split())


async def test_reload_applies_valid_and_rejects_invalid_configuration(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    config = tmp_path / "config.yaml"
    config.write_text(serving("first"))
    async with world(tmp_path, nodes=2) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w, config)) as command:
            await manager.until("READY")
            config.write_text(serving("first").replace("schedulerName", "schedulrName"))
            await hang_up(command)
            assert int((await manager.until("RELOADING"))["MONOTONIC_USEC"]) > 0
            assert (await manager.until("READY"))["STATUS"] == REFUSED
            (refused,) = events(command, REFUSED)
            assert refused["error"] == (
                f"{config}:4: document 1: profiles[0].schedulrName: unknown field; did you mean"
                " schedulerName?"
            )
            shown = await metrics(command)
            assert 'asched_config_reloads_total{result="failure"} 1.0' in shown
            assert "asched_config_last_reload_successful 0.0" in shown
            w.add_pod("old", schedulerName="first")
            await w.until(lambda: bool(w.node_of("old")))
            config.write_text(serving("second"))
            await hang_up(command)
            await manager.until("RELOADING")
            assert (await manager.until("READY"))["STATUS"] == "scheduling"
            w.add_pod("left", schedulerName="first")
            w.add_pod("new", schedulerName="second")
            await w.until(lambda: bool(w.node_of("new")))
            assert not w.node_of("left")
            shown = await metrics(command)
            assert 'asched_config_reloads_total{result="success"} 1.0' in shown
            assert "asched_config_last_reload_successful 1.0" in shown
            assert await stopped(made, command) == 0
        await verify(made, w)


async def test_debug_outlasts_a_reload(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(serving("a"))
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w, config), "--debug") as command:
            await until_logged(command, "caches synced")
            command.send(signal.SIGHUP)
            await until_logged(command, "configuration unchanged")
            assert await stopped(made, command) == 0
        assert events(command, "checkpoint written")  # at level debug


class ConfigMap:
    """A volume as the kubelet keeps it: the file is a link to one in ``..data``, which is a link to
    a folder that is never changed."""

    def __init__(self, volume: Path, text: str) -> None:
        volume.mkdir()
        self._volume = volume
        self._versions = 0
        self.file = volume / "config.yaml"
        self.swap(text)
        self.file.symlink_to(Path("..data") / "config.yaml")

    def swap(self, text: str) -> None:
        self._versions += 1
        folder = self._volume / f"..version-{self._versions}"
        folder.mkdir()
        (folder / "config.yaml").write_text(text)
        (self._volume / "..data_tmp").symlink_to(folder.name)
        os.replace(self._volume / "..data_tmp", self._volume / "..data")


async def test_reload_under_load_loses_no_pod_and_binds_none_twice(tmp_path: Path) -> None:
    """Five configurations, four of them by signal, the last one because the ConfigMap was
    swapped."""
    texts = [
        serving("a", "b").replace("a}", f"a, percentageOfNodesToScore: {share}}}")
        for share in range(10, 60, 10)
    ]
    volume = ConfigMap(tmp_path / "volume", serving("a", "b"))
    async with world(tmp_path, nodes=5) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w, volume.file)) as command:
            await until_logged(command, "caches synced")
            for count, text in enumerate(texts, 1):
                for number in range(40):
                    name = "ab"[number % 2]
                    w.add_pod(f"p-{count}-{number}", "10m", schedulerName=name)
                volume.swap(text)
                if count < len(texts):
                    command.send(signal.SIGHUP)
                await until_applied(command, count)
            await w.until(lambda: not w.unbound())
            reasons = [line["trigger"] for line in events(command, GOOD)]
            assert reasons == ["SIGHUP"] * 4 + ["the file changed"]
            assert await stopped(made, command) == 0
        assert len(w.placements.order) == 200
        await verify(made, w)


# -- files ------------------------------------------------------------------------------------


def test_device_is_read_up_to_the_limit() -> None:
    file = ConfigFile(Path("/dev/zero"))
    assert not file.changed()
    with pytest.raises(ConfigFileError, match="larger than"):
        load(file.path, PluginRegistry.discover())


def test_file_change_counts_after_two_polls(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")
    file = ConfigFile(path)
    assert [file.changed(), file.changed()] == [False, False]
    path.write_text("on")  # half written
    assert not file.changed()
    path.write_text("two!")
    assert [file.changed(), file.changed()] == [False, True]
    file.loading()
    assert not file.changed()
    path.write_text("two!")  # another time of change, the same content
    assert [file.changed(), file.changed()] == [False, False]
    path.unlink()
    assert [file.changed(), file.changed()] == [False, True]


def test_reverted_file_change_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")
    file = ConfigFile(path)
    path.write_text("two")
    assert not file.changed()
    path.write_text("one")
    assert [file.changed(), file.changed()] == [False, False]


# -- the service manager and metrics ----------------------------------------------------------


class Trial:
    """Reloads of a file, and the applied configurations."""

    def __init__(self, folder: Path, manager: ServiceManager) -> None:
        self.registry = CollectorRegistry()
        self.path = folder / "config.yaml"
        self.path.write_text(KUBE)
        self.applied: list[Configuration] = []
        self.error = ""
        self.reloads = ConfigReloader(
            ConfigFile(self.path), self._load, self._apply_config, ReloadMetrics(self.registry),
            manager, ManualClock(horizon_s=0),
        )  # fmt: skip

    def _load(self, path: Path) -> Configuration:
        return load(path, PluginRegistry.discover())

    async def _apply_config(self, configuration: Configuration) -> ConfigApplied:
        if self.error:
            raise ReconfigurationError(self.error)
        self.applied.append(configuration)
        return ConfigApplied(True, ())

    async def change(self, text: str) -> None:
        self.path.write_text(text)
        await self.reloads.poll()
        await self.reloads.poll()

    def count(self, result: str) -> float | None:
        return self.registry.get_sample_value("asched_config_reloads_total", {"result": result})


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


async def test_service_manager_is_notified_of_reload_begin_and_end(
    tmp_path: Path, manager: Manager
) -> None:
    service = ServiceManager(manager.address)
    service.ready("standby")
    trial = Trial(tmp_path, service)
    await trial.change(KUBE + "podMaxBackoffSeconds: 20\n")
    ready, begun, ended = manager.received()
    assert ready["READY"] == "1"
    assert begun["RELOADING"] == "1"
    assert int(begun["MONOTONIC_USEC"]) >= 0
    assert ended == {"READY": "1", "STATUS": "standby"}
    trial.error = "no"
    await trial.change(KUBE + "podMaxBackoffSeconds: 30\n")
    _, ended = manager.received()
    assert ended == {"READY": "1", "STATUS": REFUSED}
    assert [c.scheduler.pod_max_backoff_seconds for c in trial.applied] == [20]
    assert (trial.count("success"), trial.count("failure")) == (1, 1)


async def test_reload_during_start_does_not_report_ready(tmp_path: Path, manager: Manager) -> None:
    trial = Trial(tmp_path, ServiceManager(manager.address))
    await trial.change(KUBE + "podMaxBackoffSeconds: 20\n")
    assert len(trial.applied) == 1
    assert manager.received() == []


async def test_reload_without_file_is_refused(tmp_path: Path) -> None:
    metrics, requests = ReloadMetrics(CollectorRegistry()), ReloadRequests()
    trial = Trial(tmp_path, ServiceManager())
    reloads = ConfigReloader(
        None, trial._load, trial._apply_config, metrics, ServiceManager(), ManualClock(horizon_s=0)
    )
    events: list[EventDict] = []
    logged = anyio.Event()

    def capture(_: object, __: str, event: EventDict) -> EventDict:
        events.append(event)
        logged.set()
        raise structlog.DropEvent

    structlog.configure(processors=[capture])
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reloads.run, requests)
            requests.request()
            with anyio.fail_after(TIMEOUT_S):
                await logged.wait()
            tasks.cancel_scope.cancel()
    finally:
        structlog.reset_defaults()
    assert events[0]["reason"] == "there is no configuration file (--config)"


async def test_deleted_file_is_rejected_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, ServiceManager())
    trial.path.unlink()
    for _ in range(5):
        await trial.reloads.poll()
    assert (trial.count("success"), trial.count("failure")) == (0, 1)
