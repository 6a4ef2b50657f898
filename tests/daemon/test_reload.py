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
from prometheus_client import CollectorRegistry

from asched.daemon.config_file import Configuration, load
from asched.daemon.notify import ServiceManager
from asched.daemon.reconfiguring import ReconfigurationError, TakenUp
from asched.daemon.reload_metrics import ReloadMetrics
from asched.daemon.reloads import ConfigFile, Reloads
from asched.framework.registry import Registry
from tests.daemon.processes import Command, Commands, commands, running
from tests.daemon.test_run_command import logged, stopped, until_logged
from tests.daemon.world import KUBE, OWN, PATIENCE_S, World, world
from tests.kube.harness import ManualClock
from tests.systemd.test_notify import Manager

HEALTH = "---\n" + OWN + "health: {address: '127.0.0.1:0'}\nlog: {format: json}\n"
GOOD = "a new configuration is used"
REFUSED = "the new configuration cannot be used; the old one goes on"


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
    """Everything that this world's journal holds is decided again, and equal to the byte."""
    for check in (("replay", "--verify"), ("journal", "verify")):
        command = await made.start(*check, "--journal", str(w.journal))
        assert await made.ended(command) == 0, command.output


async def until_taken_up(command: Command, times: int) -> None:
    with anyio.fail_after(PATIENCE_S):
        while command.output.count(GOOD) < times:  # noqa: ASYNC110  a file tells nobody
            await anyio.sleep(0.01)


async def test_sighup_takes_up_what_is_good_and_refuses_what_is_not(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(serving("first"))
    async with world(tmp_path, nodes=2) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w, config)) as command:
            await until_logged(command, "caches synced")
            config.write_text(serving("first").replace("schedulerName", "schedulrName"))
            command.send(signal.SIGHUP)
            await until_logged(command, REFUSED)
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
            command.send(signal.SIGHUP)
            await until_logged(command, GOOD)
            w.add_pod("left", schedulerName="first")
            w.add_pod("new", schedulerName="second")
            await w.until(lambda: bool(w.node_of("new")))
            assert not w.node_of("left")
            shown = await metrics(command)
            assert 'asched_config_reloads_total{result="success"} 1.0' in shown
            assert "asched_config_last_reload_successful 1.0" in shown
            assert await stopped(made, command) == 0
        await verify(made, w)


async def test_a_config_map_that_is_swapped_is_taken_up(tmp_path: Path) -> None:
    """As the kubelet does it: ``config.yaml`` is a link to one in ``..data``, which is a link to a
    folder that is never changed."""

    def project(folder: str, text: str) -> None:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(folder)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    project("..first", serving("first"))
    config = tmp_path / "config.yaml"
    config.symlink_to(Path("..data") / "config.yaml")
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w, config)) as command:
            w.add_pod("p", schedulerName="second")
            await until_logged(command, "caches synced")
            project("..second", serving("second"))
            await w.until(lambda: bool(w.node_of("p")))
            (taken,) = events(command, GOOD)
            assert taken["because"] == "the file changed"
            assert await stopped(made, command) == 0
        await verify(made, w)


async def test_under_load_no_pod_is_lost_or_bound_twice(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    texts = [
        serving("a", "b").replace("a}", f"a, percentageOfNodesToScore: {share}}}")
        for share in range(10, 60, 10)
    ]
    config.write_text(serving("a", "b"))
    async with world(tmp_path, nodes=5) as w, commands(tmp_path) as made:
        async with running(made, *arguments(w, config)) as command:
            await until_logged(command, "caches synced")
            for count, text in enumerate(texts, 1):
                for number in range(40):
                    name = "ab"[number % 2]
                    w.add_pod(f"p-{count}-{number}", "10m", schedulerName=name)
                config.write_text(text)
                command.send(signal.SIGHUP)
                await until_taken_up(command, count)
            await w.until(lambda: not w.unbound())
            assert await stopped(made, command) == 0
        assert len(w.placements.order) == 200
        await verify(made, w)


async def test_a_daemon_without_a_file_says_so(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        options = ("--kubeconfig", str(w.kubeconfig), "--journal", str(w.journal))
        async with running(made, "run", *options) as command:
            await until_logged(command, "caches synced")
            command.send(signal.SIGHUP)
            await until_logged(command, "there is no configuration file (--config)")
            assert await stopped(made, command) == 0


# -- files ------------------------------------------------------------------------------------


def test_a_change_counts_once_it_was_seen_twice(tmp_path: Path) -> None:
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


def test_what_was_changed_and_changed_back_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("one")
    file = ConfigFile(path)
    path.write_text("two")
    assert not file.changed()
    path.write_text("one")
    assert [file.changed(), file.changed()] == [False, False]


# -- what the service manager and the metrics are told ----------------------------------------


class Trial:
    """Reloads of a file, and what was taken up."""

    def __init__(self, folder: Path, manager: ServiceManager) -> None:
        self.registry = CollectorRegistry()
        self.path = folder / "config.yaml"
        self.path.write_text(KUBE)
        self.taken: list[Configuration] = []
        self.refuse = ""
        self.reloads = Reloads(
            ConfigFile(self.path), self._load, self._take_up, ReloadMetrics(self.registry),
            manager, ManualClock(horizon_s=0),
        )  # fmt: skip

    def _load(self, path: Path) -> Configuration:
        return load(path, Registry.discover())

    async def _take_up(self, configuration: Configuration) -> TakenUp:
        if self.refuse:
            raise ReconfigurationError(self.refuse)
        self.taken.append(configuration)
        return TakenUp(True, ())

    async def change(self, text: str) -> None:
        self.path.write_text(text)
        await self.reloads.look()
        await self.reloads.look()

    def count(self, result: str) -> float | None:
        return self.registry.get_sample_value("asched_config_reloads_total", {"result": result})


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


async def test_a_reload_is_told_from_its_begin_to_its_end(tmp_path: Path, manager: Manager) -> None:
    service = ServiceManager(manager.address)
    service.ready("scheduling")
    trial = Trial(tmp_path, service)
    await trial.change(KUBE + "podMaxBackoffSeconds: 20\n")
    ready, begun, ended = manager.received()
    assert ready["READY"] == "1"
    assert begun["RELOADING"] == "1"
    assert int(begun["MONOTONIC_USEC"]) >= 0
    assert ended == {"READY": "1", "STATUS": "scheduling"}
    trial.refuse = "no"
    await trial.change(KUBE + "podMaxBackoffSeconds: 30\n")
    _, ended = manager.received()
    assert ended == {"READY": "1", "STATUS": REFUSED}
    assert [c.scheduler.pod_max_backoff_seconds for c in trial.taken] == [20]
    assert (trial.count("success"), trial.count("failure")) == (1, 1)


async def test_a_reload_during_the_start_does_not_end_the_start(
    tmp_path: Path, manager: Manager
) -> None:
    trial = Trial(tmp_path, ServiceManager(manager.address))
    await trial.change(KUBE + "podMaxBackoffSeconds: 20\n")
    assert len(trial.taken) == 1
    assert manager.received() == []


async def test_a_file_that_goes_is_refused_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, ServiceManager())
    trial.path.unlink()
    for _ in range(5):
        await trial.reloads.look()
    assert (trial.count("success"), trial.count("failure")) == (0, 1)
