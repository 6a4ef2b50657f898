"""kill -9 at any point of a session: no gang is bound twice or in part, and the journal replays."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from tests.batch_world.jobs import add_gang, bound, check_replay, prepare, status
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.test_kill import ProcessKiller
from tests.daemon.world import world

KILLS, GANGS, SIZE = 6, 8, 5
CONFIG = NO_HEALTH + "batch: [{period: 10ms}]\n"


async def test_kill_9_during_sessions(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with world(tmp_path, nodes=8, cpu="16") as w, commands(tmp_path) as made:
        prepare(w)
        for number in range(GANGS):
            add_gang(w, f"job{number}", SIZE, "2")
        assassin = ProcessKiller(w)
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG)
        arguments = ["--kubeconfig", w.kubeconfig, "--journal", w.journal, "--config", config]
        for _ in range(KILLS):
            async with running(made, "run", *map(str, arguments)) as command:
                assassin.arm(command, chance.randint(5, 40))
                assert await made.ended(command) == -signal.SIGKILL, command.output
            assert w.placements.violations == []
        async with w.daemon(CONFIG):
            names = [f"job{number}" for number in range(GANGS)]
            await w.until(lambda: all(bound(w, name) == SIZE for name in names))
            await w.until(lambda: all(status(w, name).get("phase") == "Running" for name in names))
        assert len(w.placements.order) == GANGS * SIZE, "each pod was bound once"
        assert await check_replay(w) > 0
