"""Plugins that are not ours: found on disk, run at every point, and kept from doing harm."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from asched.framework.binding import BindingClient
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    BindPlugin,
    FilterPlugin,
    PermitPlugin,
    PermitResult,
    PostBindPlugin,
    PreBindPlugin,
    ReservePlugin,
    ReserveResult,
)
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Code, Status
from tests.daemon.distributions import install
from tests.daemon.processes import NO_HEALTH, commands, running
from tests.daemon.test_run_command import arguments, logged, stopped, until_logged
from tests.daemon.world import KUBE, OWN, world

PAIRS = '''
"""Pods labelled `pair` start in twos: the first waits on Permit until the second has a node."""
from asched.framework.interface import (
    PermitPlugin, PermitResult, PostBindPlugin, PreBindPlugin,
)
from asched.framework.status import SUCCESS, Code, Status

calls = []

class Pairs(PermitPlugin, PreBindPlugin, PostBindPlugin):
    name = "Pairs"
    api_version = 1

    def permit(self, state, pod, node_name):
        pair = pod.pod.metadata.labels.get("pair")
        if pair is None:
            return PermitResult()
        partners = [
            waiting for waiting in self.handle.waiting_pods()
            if waiting.info.pod.metadata.labels.get("pair") == pair
        ]
        for partner in partners:
            partner.allow(self.name)
        return PermitResult() if partners else PermitResult(Status(Code.WAIT), 0.5)

    async def pre_bind(self, client, pod, node_name):
        calls.append(("PreBind", pod.name, node_name))
        return SUCCESS

    async def post_bind(self, client, pod, node_name):
        calls.append(("PostBind", pod.name, node_name))
'''


@pytest.fixture
def pairs_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the plugin's module."""
    module = install(tmp_path, monkeypatch, "Pairs", PAIRS)
    yield module
    sys.modules.pop(module, None)


def enabled(name: str) -> str:
    """The default profile with one more plugin, wherever it can serve."""
    return KUBE + f"profiles:\n- plugins:\n    multiPoint:\n      enabled: [{{name: {name}}}]\n"


async def test_distribution_serves_permit_pre_bind_and_post_bind(
    tmp_path: Path, pairs_distribution: str
) -> None:
    async with world(tmp_path, nodes=2) as w, w.daemon(enabled("Pairs")) as daemon:
        w.add_pod("lone", labels={"pair": "a"})
        w.add_pod("plain")
        await w.until(lambda: w.node_of("plain") != "")
        await w.until(lambda: w.message("lone").endswith("at plugin Pairs"))
        assert w.message("lone").startswith("rejected due to timeout after waiting ")
        assert w.condition("lone")["reason"] == "Unschedulable"
        assert not w.node_of("lone")
        w.add_pod("left", labels={"pair": "b"})
        w.add_pod("right", labels={"pair": "b"})
        await w.until(lambda: all(w.node_of(name) for name in ("left", "right")))
        stats = daemon.engine.stats
    calls = sys.modules[pairs_distribution].calls
    for name in ("plain", "left", "right"):
        called = [(point, node) for point, pod, node in calls if pod == name]
        assert called == [("PreBind", w.node_of(name)), ("PostBind", w.node_of(name))]
    assert not [call for call in calls if call[1] == "lone"]
    assert (stats.bound, stats.failed) == (3, 0)


class Broken(FilterPlugin):
    """Raises for pods of one name."""

    name: ClassVar[str] = "Broken"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if pod.name == "bad":
            raise RuntimeError("boom")
        return SUCCESS


async def test_raising_plugin_fails_only_its_own_pod(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, w.daemon(enabled("Broken"), Broken):
        w.add_pod("bad")
        w.add_pod("good")
        await w.until(lambda: w.node_of("good") == "n0" and bool(w.message("bad")))
        assert re.fullmatch(
            r"plugin Broken at Filter: RuntimeError: boom"
            r" \(daemon/test_third_party_plugins\.py:\d+\)",
            w.message("bad"),
        )
        assert w.condition("bad")["reason"] == "SchedulerError"


BROKEN = """
from asched.framework.interface import FilterPlugin

class Broken(FilterPlugin):
    name = "Broken"
    api_version = 1

    def filter(self, state, pod, node):
        return {}["x"]
"""


@pytest.mark.parametrize("debug", [False, True])
async def test_debug_logs_the_traceback_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    module = install(tmp_path, monkeypatch, "Broken", BROKEN)
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as runner:
        config = arguments(w, f"{enabled('Broken')}---\n{NO_HEALTH}")
        async with running(runner, *config, *["--debug"] * debug) as command:
            await until_logged(command, "caches synced")
            w.add_pod("bad")
            await w.until(lambda: f"KeyError: 'x' (site/{module}.py:9)" in w.message("bad"))
            assert await stopped(runner, command) == 0
    traces = [str(line["exception"]) for line in logged(command) if "exception" in line]
    assert bool(traces) is debug
    for trace in traces:
        assert trace.endswith("KeyError: 'x'")
        assert f'{module}.py", line 9, in filter' in trace


class Awkward(PreBindPlugin, PostBindPlugin):
    """Fails in every way that a plugin of the binding cycle can, once each."""

    name: ClassVar[str] = "Awkward"
    api_version: ClassVar[int] = 1
    time_limit_s: ClassVar[float] = 0.2
    met: ClassVar[set[str]] = set()

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        if pod.name in self.met:
            return SUCCESS
        self.met.add(pod.name)
        match pod.name:
            case "raises":
                raise RuntimeError("boom")
            case "nonsense":
                return "yes"  # type: ignore[return-value]  # which is the point
            case "hangs":
                await anyio.sleep_forever()
            case "errs":
                return Status.error("disk on fire")
            case "refuses":
                return Status.unschedulable("not today")
            case "object":
                return Status.error(OSError("busy"))  # type: ignore[arg-type]  # an exception
            case "surrogate":
                return Status.unschedulable("\udcff is busy")
        return SUCCESS

    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        raise RuntimeError("boom")


async def test_failed_pre_bind_is_reported_and_retried(tmp_path: Path) -> None:
    Awkward.met.clear()
    said: dict[str, tuple[str, str]] = {}
    names = ("raises", "nonsense", "hangs", "errs", "refuses", "object", "surrogate")
    async with world(tmp_path, nodes=1) as w:

        def note_conditions() -> bool:
            for name in names:
                if w.message(name):
                    said[name] = (w.condition(name)["reason"], w.message(name))
            return len(said) == len(names)

        async with w.daemon(enabled("Awkward"), Awkward) as daemon:
            for name in names:
                w.add_pod(name)
            await w.until(note_conditions)
            # A rejection waits for an event of the plugin that rejected; it registered none.
            await w.until(lambda: w.unbound() == ["refuses"])
            assert daemon.cluster.queue.unschedulable.keys() == {"default/refuses"}
    line = f"daemon/test_third_party_plugins.py:{Awkward.pre_bind.__code__.co_firstlineno + 6}"
    prefix = 'running PreBind plugin "Awkward": '
    assert said == {
        "raises": ("SchedulerError", prefix + f"RuntimeError: boom ({line})"),
        "nonsense": ("SchedulerError", prefix + "answered 'yes', no Status"),
        "hangs": ("SchedulerError", prefix + "no answer within 0.2 s"),
        "errs": ("SchedulerError", prefix + "disk on fire"),
        "refuses": ("Unschedulable", "not today"),
        "object": (
            "SchedulerError",
            prefix + "its answer cannot be used: TypeError: sequence item 0: expected str instance,"
            " OSError found",
        ),
        "surrogate": (
            "SchedulerError",
            prefix + "its answer cannot be used: UnicodeEncodeError: 'utf-8' codec can't encode"
            " character '\\udcff' in position 0: surrogates not allowed",
        ),
    }


class BindsThenRaises(BindPlugin):
    name: ClassVar[str] = "BindsThenRaises"
    api_version: ClassVar[int] = 1

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        await client.bind(pod, node_name)
        raise RuntimeError("afterwards")


async def test_bound_pod_stays_bound_if_plugin_fails_afterwards(tmp_path: Path) -> None:
    config = (
        KUBE + "profiles:\n- plugins:\n    bind:\n      enabled: [{name: BindsThenRaises}]\n"
        "      disabled: [{name: DefaultBinder}]\n"
    )
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(config, BindsThenRaises) as daemon:
            w.add_pod("p")
            await w.until(lambda: w.events("p") != [])
            assert w.events("p")[0][0] == "Scheduled"
            stats = daemon.engine.stats
        assert (stats.assigned, stats.bound, stats.failed) == (1, 1, 0)


class Ledger(ReservePlugin):
    """Keeps books of what it set aside."""

    name: ClassVar[str] = "Ledger"
    api_version: ClassVar[int] = 1
    books: ClassVar[list[tuple[str, str, object]]] = []

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult(reservation={"slot": len(pod.name)})

    def on_reserved(
        self, pod: PodInfo, node_name: str, reservation: dict[str, object] | None
    ) -> None:
        self.books.append(("reserved", pod.name, reservation))

    def unreserve(
        self, pod: PodInfo, node_name: str, reservation: dict[str, object] | None
    ) -> None:
        self.books.append(("unreserved", pod.name, reservation))


class Never(PermitPlugin):
    """Holds every pod for a moment and lets none go."""

    name: ClassVar[str] = "Never"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 0.5)


async def test_reserve_plugins_are_restored_after_restart(tmp_path: Path) -> None:
    Ledger.books.clear()
    # Without checkpoints, so that the restart folds all records and calls the plugins for each.
    config = (
        KUBE
        + "profiles:\n- plugins:\n    multiPoint:\n      enabled: [{name: Ledger}, {name: Never}]\n"
        + f"---\n{OWN}journal: {{checkpointEvery: 0}}\n"
    )
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(config, Ledger, Never, compare_at_end=False):
            w.add_pod("four")
            await w.until(lambda: w.message("four").endswith("at plugin Never"))
        live = list(Ledger.books)
        assert live[:2] == [("reserved", "four", {"slot": 4}), ("unreserved", "four", {"slot": 4})]
        Ledger.books.clear()
        # A second fold would write to the same books.
        async with w.daemon(config, Ledger, Never, compare_at_end=False):
            assert Ledger.books[: len(live)] == live
