"""Simulated daemon processes that start, stop, crash, freeze and are fenced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec

from asched.config.file import Configuration
from asched.config.registry import PluginRegistry
from asched.daemon.daemon import Daemon, running_daemon
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.leadership import LeadershipLostError, candidate
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.daemon.ha.replica import running_replica
from asched.daemon.process import Runtime
from asched.daemon.reload.reloader import ConfigApplied
from asched.daemon.startup import DaemonContext
from asched.journal.errors import FencedError, JournalBusyError
from asched.kube.client import ApiClient, RenewingCredentials
from asched.kube.timing import RetryPolicy
from asched.kube.transport import ApiRequest, Credentials
from asched.model.node import Node
from asched.state.cluster import ClusterState
from asched.state.records import AnyRecord
from tests.fault_simulation.auditor import Auditor
from tests.fault_simulation.breach import BreachError, BreachReporter, demand
from tests.fault_simulation.mixes import Election
from tests.fault_simulation.network import Network, SimulatedTransport
from tests.fault_simulation.ports import Ports
from tests.fault_simulation.stores import Disk, FaultyStore
from tests.fault_simulation.trace import Trace
from tests.fault_simulation.virtual_time import VirtualClock, VirtualLoop
from tests.kube.harness import FixedCredentials

T = TypeVar("T")

_SERVER = Credentials("http://127.0.0.1")
_LEASE = LeaseName("kube-system", "asched")


class ConfigFile:
    """The configuration file; a process reads it at its start and on a reload."""

    def __init__(self, now: Configuration) -> None:
        self.now = now


class Surroundings(NamedTuple):
    """State shared by the processes of a simulation."""

    loop: VirtualLoop
    network: Network
    disk: Disk
    auditor: Auditor
    trace: Trace
    configured: ConfigFile
    registry: PluginRegistry
    reporter: BreachReporter
    election: Election


class Process:
    """One daemon process."""

    def __init__(self, name: str, around: Surroundings, seed: str) -> None:
        self.name = name
        self._daemon: Callable[[], Daemon | None] = lambda: None
        self.over = False
        self.fenced = False
        self._around = around
        self._chance = Random(f"{seed}/{name}")
        self.ports = Ports()
        self._thinks_s = self._chance.choice((0.0, 1e-5, 1e-3, 0.01))
        self.clock = VirtualClock(around.loop, self._thinking_s)
        self._stop = anyio.Event()
        self._reloads = anyio.Event()
        self._scope = anyio.CancelScope()

    def _thinking_s(self) -> float:
        return self._chance.uniform(0.0, self._thinks_s) if self._thinks_s else 0.0

    async def run(self) -> None:
        """Run until a stop, a crash or another legitimate end; any other end is a breach."""
        trace = self._around.trace
        trace(self.name, "starts")
        try:
            with self._scope:
                await self._run_daemon()
                trace(self.name, "stopped in order")
        except* FencedError:
            trace(self.name, "was fenced")
            self.fenced = True
        except* LeadershipLostError as group:
            trace(self.name, str(_first(group)))
        except* JournalBusyError:
            trace(self.name, "could not claim the journal")
        except* Exception as group:  # noqa: BLE001  no other exception may end a daemon
            self._around.reporter.report(self._as_breach(_first(group)))
        finally:
            self.over = True

    async def _run_daemon(self) -> None:
        around, configuration = self._around, self._around.configured.now
        client = self._client(self.name)
        store = FaultyStore(self.name, around.disk, self.ports, around.trace, self._stored)
        runtime = Runtime(self.clock, self._run_in_thread, self.name)
        context = DaemonContext(configuration, around.registry, client, store, runtime=runtime)
        if around.election is Election.NONE:
            async with running_daemon(context) as daemon:
                self._daemon = lambda: daemon
                await self._serve(daemon.apply_config)
            return
        lease_client = self._client(f"{self.name} lease")
        elector = LeaderElector(lease_client, _LEASE, self.name, LeaseTiming())
        async with (
            candidate(elector) as leadership,
            running_replica(
                context, leadership, shared=around.election is Election.SHARED
            ) as replica,
        ):
            self._daemon = lambda: replica.daemon
            await self._serve(replica.apply_config)

    async def _serve(
        self, apply_config: Callable[[Configuration], Awaitable[ConfigApplied]]
    ) -> None:
        """Apply configurations until stopped."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._reload, apply_config)
            await self._stop.wait()
            self._around.trace(self.name, "stops")
            tasks.cancel_scope.cancel()

    async def _reload(
        self, apply_config: Callable[[Configuration], Awaitable[ConfigApplied]]
    ) -> None:
        while True:
            await self._reloads.wait()
            self._reloads = anyio.Event()
            taken = await apply_config(self._around.configured.now)
            self._around.trace(self.name, f"applied a configuration: {taken}")

    def _client(self, name: str) -> ApiClient:
        """A client with its own connections."""
        around = self._around
        transport = SimulatedTransport(
            name, around.network, self.ports, around.trace, self._outgoing
        )
        source = FixedCredentials(_SERVER)
        return ApiClient(
            transport,
            RenewingCredentials(source, _SERVER, self.clock),
            clock=self.clock,
            random=self._chance,
            retry=RetryPolicy(),
        )

    async def _run_in_thread(self, compute: Callable[[], T], /) -> T:
        """Take simulated time for work in a thread."""
        await anyio.sleep(self._chance.uniform(0.0, 0.5))
        return compute()

    def _as_breach(self, cause: BaseException) -> BreachError:
        if isinstance(cause, BreachError):
            return cause
        breach = BreachError(f"{self.name} ended with {type(cause).__name__}: {cause}")
        breach.__cause__ = cause
        return breach

    def _stored(self, first_seq: int, records: Sequence[AnyRecord]) -> None:
        auditor = self._around.auditor
        auditor.live = self._state
        with self._reported():
            auditor.stored(first_seq, records)

    def _state(self) -> ClusterState | None:
        daemon = self._daemon()
        return None if daemon is None else daemon.cluster

    def _outgoing(self, request: ApiRequest) -> None:
        """Every write needs a durable decision, and every binding an existing node."""
        if request.body is None or "/pods/" not in request.path:
            return
        with self._reported():
            if request.path.endswith("/binding"):
                self._check_binding(msgspec.json.decode(request.body))
            elif request.method == "DELETE":
                uid = msgspec.json.decode(request.body)["preconditions"]["uid"]
                known = uid in self._around.auditor.evicted
                demand(known, f"{self.name} evicts {request.path}, which is not in the journal")

    def _check_binding(self, binding: dict[str, Any]) -> None:
        name, uid = binding["metadata"]["name"], binding["metadata"]["uid"]
        node, state = binding["target"]["name"], self._state()
        what = f"{self.name} binds {name} to {node}, which"
        demand((uid, node) in self._around.auditor.assigned, f"{what} is not in the journal")
        assert state is not None
        demand(node in state.objects(Node), f"{what} it knows to be gone")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report a breach in addition to raising it."""
        try:
            yield
        except BreachError as breach:
            self._around.reporter.report(breach)
            raise

    # -- faults -------------------------------------------------------------------------------

    def crash(self) -> None:
        """Cut all input and output now."""
        if not self.over and not self.ports.cut:
            self._around.trace(self.name, "crashes")
            self.ports.cut = True
            self._around.loop.call_soon(self._scope.cancel)

    def reload(self) -> None:
        """SIGHUP."""
        self._reloads.set()

    def stop(self) -> None:
        """SIGTERM."""
        self._stop.set()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("a group holds an exception")
