"""Messages to the service manager over a real datagram socket."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from asched.daemon.telemetry.health import SEND_TIMEOUT_S, START_EXTENSION_S, ServiceManager
from asched.journal.opening import redacted
from asched.journal.sql import SqlStore
from asched.journal.sqlite import SqliteDatabase
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.world import TIMEOUT_S, World, world

Message = dict[str, str]


class Manager:
    """The listening end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def close(self) -> None:
        self._socket.close()

    def received(self) -> list[Message]:
        """The messages since the last call."""
        found: list[Message] = []
        while True:
            try:
                lines = self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in lines))

    async def next(self) -> Message:
        with anyio.fail_after(TIMEOUT_S):
            await anyio.wait_readable(self._socket)
        message = self._socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in message.split("\n"))

    async def until(self, name: str) -> Message:
        while name not in (message := await self.next()):
            pass
        return message


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


# -- the protocol -----------------------------------------------------------------------------


def test_message_is_one_datagram(manager: Manager) -> None:
    service = ServiceManager.from_environment({"NOTIFY_SOCKET": manager.address})
    service.ready("scheduling")
    service.stopping()
    assert manager.received() == [
        {"READY": "1", "STATUS": "scheduling"},
        {"STOPPING": "1", "STATUS": "completing effects in flight"},
    ]


def fill(address: str) -> None:
    """Put words into the manager's queue until there is no room."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(BlockingIOError):
        sender.setblocking(False)
        while True:
            sender.sendto(b"WATCHDOG=1", address)


async def test_message_waits_for_socket_buffer(manager: Manager) -> None:
    service = ServiceManager(manager.address)
    fill(manager.address)
    begin_s = time.monotonic()
    service.stopping()
    # Without a reader: the message was sent completely.
    assert time.monotonic() - begin_s >= SEND_TIMEOUT_S
    assert not [message for message in manager.received() if "STOPPING" in message]
    fill(manager.address)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, service.stopping)
        await manager.until("STOPPING")


def test_abstract_socket(tmp_path: Path) -> None:
    manager = Manager(f"@{tmp_path}")
    service = ServiceManager.from_environment({"NOTIFY_SOCKET": manager.address})
    service.ready("scheduling")
    assert [*manager.received()[0]] == ["READY", "STATUS"]
    manager.close()


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
async def test_no_messages_without_notify_socket(environment: dict[str, str]) -> None:
    service = ServiceManager.from_environment(environment | {"WATCHDOG_USEC": "1"})
    service.ready("scheduling")
    with anyio.fail_after(TIMEOUT_S):
        await service.run()  # there is nothing to go on with


def test_missing_manager_is_ignored(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    service = ServiceManager.from_environment({"NOTIFY_SOCKET": manager.address})
    manager.close()
    service.ready("scheduling")
    service.stopping()
    assert capsys.readouterr().out.count("notifying systemd failed") == 1


@pytest.mark.parametrize(
    ("environment", "alive"),
    [
        ({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "7"}, True),
        ({"WATCHDOG_USEC": "1000"}, True),
        ({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "8"}, False),
        ({"WATCHDOG_USEC": "0", "WATCHDOG_PID": "7"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
async def test_watchdog_only_for_own_pid(
    manager: Manager, environment: dict[str, str], alive: bool
) -> None:
    service = ServiceManager.from_environment(
        {"NOTIFY_SOCKET": manager.address} | environment, pid=7
    )
    service.ready("scheduling")
    assert [*await manager.next()] == ["READY", "STATUS"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        if alive:
            assert await manager.next() == {"WATCHDOG": "1"}
            assert await manager.next() == {"WATCHDOG": "1"}
        tasks.cancel_scope.cancel()
    assert alive or not manager.received()


async def test_start_extends_timeout(manager: Manager) -> None:
    service = ServiceManager.from_environment(
        {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000"}
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        extension_us = str(round(START_EXTENSION_S * 1e6))
        assert await manager.next() == {
            "EXTEND_TIMEOUT_USEC": extension_us, "STATUS": "starting",
        }  # fmt: skip
        service.ready("scheduling")
        assert "READY" in await manager.next()
        assert await manager.next() == {"WATCHDOG": "1"}
        tasks.cancel_scope.cancel()


async def test_no_watchdog_message_while_hanging(manager: Manager) -> None:
    service = ServiceManager.from_environment(
        {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000"}
    )
    asked = 0

    def is_stuck() -> bool:
        nonlocal asked
        asked += 1
        return asked <= 3

    service.attach(is_stuck)
    service.ready("scheduling")
    await manager.until("READY")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        assert await manager.next() == {"WATCHDOG": "1"}
        assert asked >= 4
        tasks.cancel_scope.cancel()


# -- the engine's part ------------------------------------------------------------------------


async def test_slow_turn_hangs_unless_waiting_for_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "asched.daemon.engine.engine.SLOW_TURN_S"
    async with world(tmp_path, nodes=1, cpu="16") as w:
        database = await SqliteDatabase.open(w.journal, read_only=False)
        try:
            async with w.daemon_on(SqlStore(database)) as daemon:
                await daemon.engine.synced.wait()
                engine = daemon.engine
                async with database.write():
                    # The turn's append waits for the database: it is under way for no known reason.
                    w.add_pod("p")
                    monkeypatch.setattr(limit, 0.0)
                    with anyio.fail_after(TIMEOUT_S):
                        while not engine.is_stuck():
                            await checkpoint()
                    monkeypatch.undo()
                    assert not daemon.is_stuck()  # not for that long
                await w.until(lambda: not w.unbound())
                await _fill(database, 1)
                w.add_pods(100, "more")
                with anyio.fail_after(TIMEOUT_S):
                    while not engine.journal_error:
                        await checkpoint()
                monkeypatch.setattr(limit, 0.0)
                monkeypatch.setattr("asched.daemon.engine.engine.UNREADY_TURN_S", 0.0)
                assert any("has taken" in check.problem() for check in engine.checks())
                assert not engine.is_stuck()
                await _fill(database, 1_000_000)
                await w.until(lambda: not w.unbound())
        finally:
            await database.close()


async def _fill(database: SqliteDatabase, pages: int) -> None:
    """Leave no room beyond so many pages."""
    async with database.write() as connection:
        await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


# -- the real process -------------------------------------------------------------------------


def environment(w: World, manager: Manager, watchdog_s: float) -> dict[str, str]:
    """What systemd and the environment file give the process."""
    return {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": str(round(watchdog_s * 1e6)),
        "ASCHED_JOURNAL": str(w.journal),
        "KUBECONFIG": str(w.kubeconfig),
    }


async def test_asched_run_as_a_service(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(NO_HEALTH)
    async with world(tmp_path, nodes=1) as w:
        for name, value in environment(w, manager, 0.02).items():
            monkeypatch.setenv(name, value)
        async with (
            commands(tmp_path) as made,
            running(made, "run", "--config", str(tmp_path / "config.yaml")) as command,
        ):
            async with w.outage():
                # Up, but of no use yet.
                assert (await manager.next())["STATUS"] == "starting"
                assert not [m for m in manager.received() if "READY" in m]
            assert (await manager.until("READY"))["STATUS"] == "scheduling"
            w.add_pod("p")
            await w.until(lambda: w.node_of("p") == "n0")
            for _ in range(3):
                assert await manager.next() == {"WATCHDOG": "1"}
            # While it drains it goes on to live.
            w.faults.on_request = lambda verb, resource: w.touch()
            w.faults.delay(1.0, count=1, resource="pods/binding")
            w.add_pod("late")
            await w.until(lambda: w.faults.injected > 0)
            command.send(signal.SIGTERM)
            await manager.until("STOPPING")
            assert await manager.next() == {"WATCHDOG": "1"}
            assert await made.ended(command) == 0
            assert w.node_of("late") == "n0"
        assert w.journal.exists()


async def test_shadow_reports_ready(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(NO_HEALTH)
    async with world(tmp_path, nodes=1) as w:
        for name, value in environment(w, manager, 60).items():
            monkeypatch.setenv(name, value)
        arguments = ("run", "--mode", "shadow", "--config", str(tmp_path / "config.yaml"))
        async with commands(tmp_path) as made, running(made, *arguments) as command:
            assert (await manager.until("READY"))["STATUS"] == "comparing"
            command.send(signal.SIGTERM)
            await manager.until("STOPPING")
            assert await made.ended(command) == 0


def test_logs_contain_no_password() -> None:
    assert redacted("postgresql+asyncpg://me:secret@db:5432/asched?password=secret") == (
        "postgresql+asyncpg://me:***@db:5432/asched"
    )
    assert redacted("/var/lib/asched/journal.db") == "/var/lib/asched/journal.db"
    assert redacted("memory://") == "memory://"


async def test_log_of_a_start_names_the_journal(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(NO_HEALTH)
    async with world(tmp_path) as w, commands(tmp_path) as made:
        options = ("--journal", str(w.journal), "--kubeconfig", str(w.kubeconfig))
        config = ("--config", str(tmp_path / "config.yaml"))
        async with running(made, "run", *options, *config) as command:
            with anyio.fail_after(TIMEOUT_S):
                while "caches synced" not in command.output:  # noqa: ASYNC110  a file has no events
                    await anyio.sleep(0.01)
            command.send(signal.SIGTERM)
            assert await made.ended(command) == 0
        logged = [json.loads(line) for line in command.lines]
        assert str(w.journal) in [line.get("journal") for line in logged]
