"""Another configuration for a standby that shares its journal with the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from asched.config.file import Configuration, parse
from asched.config.registry import PluginRegistry
from asched.daemon.reload.reloader import ConfigApplied, ReconfigurationError
from asched.journal.chain import SealedBatch
from asched.journal.memory import MemoryStore
from tests.cycle.plugins import RoomForAll
from tests.daemon.world import KUBE, OWN, TIMEOUT_S, world
from tests.replicas.test_shared_journal_trouble import free_lease, standby
from tests.state.profiles import profile_of

NO_CERTIFICATE = KUBE + (
    "extenders:\n- {urlPrefix: 'https://127.0.0.1:1', filterVerb: f, enableHTTPS: true,"
    " tlsConfig: {caFile: /nonexistent/ca.crt}}\n"
)
OTHER = KUBE + "profiles: [{schedulerName: other}]\n"


class TellingStore(MemoryStore):
    """Reports when it was claimed and read to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_over = anyio.Event()
        self._claimed = False

    async def claim(self, writer: str, *, claimed_at_ns: int) -> int:
        epoch = await super().claim(writer, claimed_at_ns=claimed_at_ns)
        self._claimed = True
        return epoch

    async def batches(self, after_batch: int = 0) -> AsyncIterator[SealedBatch]:
        async for sealed in super().batches(after_batch):
            yield sealed
        if self._claimed:
            self.taken_over.set()


def read(text: str) -> Configuration:
    return parse(text, "test", PluginRegistry.discover())


def faulty() -> Configuration:
    return msgspec.structs.replace(read(KUBE), faults=("it cannot be",))


def with_a_plugin_that_is_not_installed() -> Configuration:
    return msgspec.structs.replace(read(KUBE), profiles=(profile_of(RoomForAll),))


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda: read(NO_CERTIFICATE), "ca.crt"),
        (faulty, "it cannot be"),
        (with_a_plugin_that_is_not_installed, 'unknown plugin "Room"'),
    ],
    ids=["extenders", "faults", "plugins"],
)
async def test_standby_rejects_what_a_leader_rejects(
    tmp_path: Path, refused: Callable[[], Configuration], why: str
) -> None:
    """Otherwise the takeover would end the process."""
    async with world(tmp_path, nodes=1) as w, standby(w, MemoryStore()) as replica:
        with pytest.raises(ReconfigurationError, match=why):
            await replica.apply_config(refused())
        w.add_pod("p")
        free_lease(w)
        await w.until(lambda: w.node_of("p") == "n0")


async def test_standby_names_restart_settings(tmp_path: Path) -> None:
    new = read(OWN + "engine: {seed: 7, turnTimeSlice: 10ms}\n")
    async with world(tmp_path, nodes=1) as w, standby(w, MemoryStore()) as replica:
        assert await replica.apply_config(new) == ConfigApplied(True, ("engine.seed",))
        assert await replica.apply_config(new) == ConfigApplied(False, ("engine.seed",))


async def test_configuration_during_takeover_is_applied(tmp_path: Path) -> None:
    store = TellingStore()
    async with world(tmp_path, nodes=1) as w, standby(w, store) as replica:
        w.add_pod("p", schedulerName="other")
        free_lease(w)
        with anyio.fail_after(TIMEOUT_S):
            await store.taken_over.wait()
        assert replica.daemon is None
        assert await replica.apply_config(read(OTHER)) == ConfigApplied(True, ())
        await w.until(lambda: w.node_of("p") == "n0")
