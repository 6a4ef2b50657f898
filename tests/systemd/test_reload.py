"""``systemctl reload``: what the unit runs, and what the daemon then tells."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.world import KUBE, world
from tests.systemd.test_notify import Manager
from tests.systemd.unit import one


async def test_the_units_command_reloads_and_the_daemon_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    config = tmp_path / "config.yaml"
    config.write_text(f"{KUBE}---\n{NO_HEALTH}")
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        options = ("--kubeconfig", w.kubeconfig, "--journal", w.journal, "--config", config)
        async with running(made, "run", *map(str, options)) as command:
            await manager.until("READY")
            for text, status in (
                (f"{KUBE}podMaxBackoffSeconds: 20\n---\n{NO_HEALTH}", "scheduling"),
                ("{", "the new configuration cannot be used; the old one goes on"),
            ):
                config.write_text(text)
                reload = one("Service.ExecReload").replace("$MAINPID", str(command.pid))
                await anyio.run_process(reload.split())
                begun = await manager.until("RELOADING")
                assert int(begun["MONOTONIC_USEC"]) > 0
                assert (await manager.until("READY"))["STATUS"] == status
    manager.close()
