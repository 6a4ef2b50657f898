"""Another configuration while the daemon runs: what becomes of pods, plugins, extenders and
watches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec
import pytest

from asched.audit.replay import replay
from asched.config.file import parse
from asched.config.kube_scheduler import KubeSchedulerConfiguration
from asched.config.settings import AschedConfiguration, EngineSettings
from asched.daemon.daemon import Daemon
from asched.daemon.reload.reconfigurer import IGNORED_SETTINGS, RELOADABLE
from asched.daemon.reload.reloader import ConfigApplied, ReconfigurationError
from asched.framework.binding import BindingClient
from asched.framework.cluster import Handle
from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterPlugin,
    PermitPlugin,
    PermitResult,
    Plugin,
    PreBindPlugin,
    ReservePlugin,
    ReserveResult,
)
from asched.framework.nodes import NodeInfo
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Code, Status
from asched.journal import open_journal
from asched.model.resources import GroupResource, Resource
from asched.state.checkpoint import checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import PermitAllowed, PermitRejected, ProfilesLoaded
from asched.testing import invariants
from tests.batch_world.jobs import prepare
from tests.daemon.test_gangs import add_worker, examples
from tests.daemon.world import KUBE, OWN, World, registry_with, world
from tests.extenders.replay import records_of
from tests.extenders.service import Service, serving

BATCH = OWN + "batch: [{schedulerName: kube-batch, period: 50ms}]\n"


def profiles(*entries: str) -> str:
    return KUBE + "profiles:\n" + "".join(f"- {entry}\n" for entry in entries)


def with_plugin(name: str, scheduler: str = "default-scheduler") -> str:
    return profiles(
        f"{{schedulerName: {scheduler}, plugins: {{multiPoint: {{enabled: [{{name: {name}}}]}}}}}}"
    )


async def apply_config(daemon: Daemon, text: str, *plugins: type[Plugin]) -> ConfigApplied:
    return await daemon.apply_config(parse(text, "test", registry_with(*plugins)))


async def check_replay(w: World, *plugins: type[Plugin]) -> None:
    """Everything is decided again and equal; the state is sound after each record, and where the
    configuration changed it is the same when it is kept and taken up again."""
    registry = registry_with(*plugins)
    async with open_journal(str(w.journal)) as journal:
        report = await replay(journal, registry)
    assert report.divergence is None
    assert report.decisions
    fold = Fold(ClusterState(), registry.load)
    for record in await records_of(w):
        fold.apply(record)
        invariants.check(fold.state)
        if isinstance(record, ProfilesLoaded):
            kept = checkpoint_of(fold.state)
            assert checkpoint_of(restore(kept, registry.load).state) == kept


class Cordon(FilterPlugin):
    """Refuses every node."""

    name: ClassVar[str] = "Cordon"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return Status.unschedulable("cordoned")


class Hold(PermitPlugin):
    """Holds pods of the label ``held`` for a quarter of an hour."""

    name: ClassVar[str] = "Hold"
    api_version: ClassVar[int] = 1

    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> PermitResult:
        if "held" not in pod.pod.metadata.labels:
            return PermitResult()
        return PermitResult(Status(Code.WAIT), 900.0)


class Tickets(ReservePlugin):
    """Gives each pod the lowest free ticket of its node, of two."""

    name: ClassVar[str] = "Tickets"
    api_version: ClassVar[int] = 1
    made: ClassVar[list[Tickets]] = []

    def __init__(self, arguments: Any, handle: Handle) -> None:
        super().__init__(arguments, handle)
        self.held: dict[str, int] = {}
        self.made.append(self)

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        free = {1, 2} - {*self.held.values()}
        if not free:
            return ReserveResult(Status.unschedulable("no ticket is left"))
        return ReserveResult(SUCCESS, {"ticket": min(free)})

    def on_reserved(self, pod: PodInfo, node_name: str, reservation: Any) -> None:
        if reservation is not None:
            self.held[pod.key] = reservation["ticket"]

    def unreserve(self, pod: PodInfo, node_name: str, reservation: Any) -> None:
        self.held.pop(pod.key, None)

    released = unreserve


class Raises(FilterPlugin):
    """Cannot be made."""

    name: ClassVar[str] = "Raises"
    api_version: ClassVar[int] = 1

    def __init__(self, arguments: Any, handle: Handle) -> None:
        raise KeyError("no licence")

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS


async def test_queued_pods_are_retried_immediately_under_new_profile(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(with_plugin("Cordon"), Cordon) as daemon:
            w.add_pod("p")
            await w.until(lambda: "cordoned" in w.message("p"))
            assert await apply_config(daemon, profiles("{}")) == ConfigApplied(True, ())
            await w.until(lambda: w.node_of("p") == "n0")
        await check_replay(w, Cordon)


async def test_profile_is_added_and_another_removed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        w.add_pod("early", schedulerName="new")
        async with w.daemon(with_plugin("Cordon", "old"), Cordon) as daemon:
            w.add_pod("left", schedulerName="old")
            await w.until(lambda: "cordoned" in w.message("left"))
            await apply_config(daemon, profiles("schedulerName: new"))
            await w.until(lambda: w.node_of("early") == "n0")
            w.add_node("n1")
            w.add_pod("later", schedulerName="new")
            await w.until(lambda: bool(w.node_of("later")))
            assert not w.node_of("left")
            assert "default/left" not in daemon.cluster.queue
        await check_replay(w, Cordon)


async def test_equal_configuration_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(profiles("schedulerName: a")) as daemon:
            assert await apply_config(daemon, profiles("{schedulerName: a}  # as before")) == (
                False,
                (),
            )
        assert sum(isinstance(r, ProfilesLoaded) for r in await records_of(w)) == 1


async def test_restart_settings_are_named(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon() as daemon:
        changed = KUBE + "clientConnection: {qps: 5, burst: 7}\n---\n" + OWN
        changed += "journal: {url: 'sqlite+aiosqlite:///other.db'}\n"
        changed += "health: {address: '127.0.0.1:1'}\nengine: {seed: 3}\n"
        taken = await apply_config(daemon, changed)
        assert sorted(taken.restart_settings) == [
            "clientConnection.burst", "clientConnection.qps", "engine.seed", "health.address",
            "journal.url",
        ]  # fmt: skip
        assert not taken.changed


@pytest.mark.parametrize(
    "setting",
    ["engine: {turnTimeSlice: 9ms}", "engine: {pluginTimeLimit: 9ms}", "log: {level: debug}"],
)
async def test_unrecorded_settings_count_as_changed_once(tmp_path: Path, setting: str) -> None:
    async with world(tmp_path) as w, w.daemon(OWN) as daemon:
        assert await apply_config(daemon, OWN + setting) == ConfigApplied(True, ())
        assert await apply_config(daemon, OWN + setting) == ConfigApplied(False, ())
        assert await apply_config(daemon, OWN) == ConfigApplied(True, ())


def test_docs_name_every_restart_setting() -> None:
    sections = (
        ("", AschedConfiguration),
        ("", KubeSchedulerConfiguration),
        ("engine.", EngineSettings),
    )
    names = {
        prefix + field.encode_name
        for prefix, section in sections
        for field in msgspec.structs.fields(section)
    } - {"apiVersion", "kind", "engine"}
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operations.md").read_text()
    (sentence,) = re.findall(r"\nChanges of (`journal`.*?) need a restart;", page, re.S)
    assert {*re.findall(r"`(\S+)`", sentence)} == names - RELOADABLE - IGNORED_SETTINGS


# -- refusals ---------------------------------------------------------------------------------


async def test_unbuildable_profile_is_rejected_without_changes(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon("", Raises) as daemon:
            with pytest.raises(ReconfigurationError) as refused:
                await apply_config(daemon, with_plugin("Raises"), Raises)
            assert "Raises" in str(refused.value)
            assert "no licence" in str(refused.value)
            assert "\n" not in str(refused.value)
            w.add_pod("p")
            await w.until(lambda: w.node_of("p") == "n0")
        assert sum(isinstance(r, ProfilesLoaded) for r in await records_of(w)) == 1
        await check_replay(w)


async def test_invalid_certificates_are_rejected(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon() as daemon:
            text = KUBE + (
                "extenders: [{urlPrefix: 'https://127.0.0.1:1', filterVerb: f,"
                f" tlsConfig: {{caFile: {tmp_path / 'none.pem'}}}}}]\n"
            )
            with pytest.raises(ReconfigurationError, match=r"tlsConfig: .*none\.pem"):
                await apply_config(daemon, text)
            w.add_pod("p")
            await w.until(lambda: w.node_of("p") == "n0")
        await check_replay(w)


# -- pods that wait on Permit, and plugins' own state -----------------------------------------


async def test_waiting_pod_keeps_its_node_until_its_plugin_is_removed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(with_plugin("Hold"), Hold) as daemon:
            w.add_pod("p", labels={"held": ""})
            w.add_pod("other")
            await w.until(lambda: bool(w.node_of("other")))
            assert "default/p" in daemon.cluster.waiting
            await apply_config(daemon, with_plugin("Hold") + "podMaxBackoffSeconds: 20\n", Hold)
            assert "default/p" in daemon.cluster.waiting
            await apply_config(daemon, profiles("{}"))
            await w.until(lambda: w.node_of("p") == "n0")
        assert [type(r) for r in await records_of(w) if isinstance(r, PermitAllowed)]
        await check_replay(w, Hold)


async def test_waiting_pod_releases_its_node_when_its_profile_is_removed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        async with w.daemon(with_plugin("Hold", "old"), Hold) as daemon:
            w.add_pod("held", "1", labels={"held": ""}, schedulerName="old")
            w.add_pod("next", "1", schedulerName="new")
            w.add_pod("seen", "0", schedulerName="old")
            await w.until(lambda: bool(w.node_of("seen")))
            assert "default/held" in daemon.cluster.waiting
            await apply_config(daemon, profiles("schedulerName: new"))
            await w.until(lambda: bool(w.node_of("next")))
            assert w.condition("held") == {}
        (rejected,) = (r for r in await records_of(w) if isinstance(r, PermitRejected))
        assert rejected.message == "profile old was removed"
        await check_replay(w, Hold)


async def test_nominations_end_when_their_profile_is_removed(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1, cpu="1") as w:
        w.cluster.create("priorityclasses", {"metadata": {"name": "high"}, "value": 10})
        w.faults.on_request = lambda verb, resource: w.touch()
        w.faults.respond(500, count=10_000, verb="delete", resource="pods")
        async with w.daemon(profiles("schedulerName: old", "schedulerName: new")) as daemon:
            w.add_pod("low", "1", schedulerName="new")
            await w.until(lambda: bool(w.node_of("low")))
            w.add_pod("high", "1", priorityClassName="high", schedulerName="old")
            await w.until(lambda: daemon.cluster.nominator.node_of("default/high") == "n0")
            await apply_config(daemon, profiles("schedulerName: new"))
            assert not daemon.cluster.nominator.node_of("default/high")
        await check_replay(w)


async def test_new_reserve_plugins_get_existing_reservations(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(with_plugin("Tickets"), Tickets) as daemon:
            w.add_pod("first")
            await w.until(lambda: bool(w.node_of("first")))
            await apply_config(
                daemon, with_plugin("Tickets") + "podInitialBackoffSeconds: 2\n", Tickets
            )
            w.add_pod("second")
            await w.until(lambda: bool(w.node_of("second")))
            assert Tickets.made[-1].held == {"default/first": 1, "default/second": 2}
            w.add_pod("third")
            await w.until(lambda: "no ticket is left" in w.message("third"))
        await check_replay(w, Tickets)


# -- extenders --------------------------------------------------------------------------------


async def test_new_extender_is_called_and_late_answers_are_ignored(tmp_path: Path) -> None:
    release = anyio.Event()

    async def late(question: Any) -> Any:
        await release.wait()
        return {"NodeNames": ["n0"]}

    async with world(tmp_path, nodes=2) as w, serving() as slow, serving() as quick:
        asked = anyio.Event()
        slow.answers["filter"] = late
        slow.on_question = asked.set
        quick.pass_only("n1")
        async with w.daemon(_extended(slow)) as daemon:
            w.add_pod("p")
            with anyio.fail_after(60):
                await asked.wait()
            await apply_config(daemon, _extended(quick))
            release.set()
            await w.until(lambda: bool(w.node_of("p")))
            assert w.node_of("p") == "n1"
            await apply_config(daemon, profiles("{}"))
            w.add_pod("plain")
            await w.until(lambda: bool(w.node_of("plain")))
            assert quick.pods_asked("filter") == ["p"]
        await check_replay(w)


class SlowPreBind(PreBindPlugin):
    """Returns once the test allows it."""

    name: ClassVar[str] = "SlowPreBind"
    api_version: ClassVar[int] = 1
    called: ClassVar[anyio.Event]
    release: ClassVar[anyio.Event]

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        self.called.set()
        await self.release.wait()
        return SUCCESS


async def test_binding_continues_with_the_extender_that_it_began_with(tmp_path: Path) -> None:
    SlowPreBind.called, SlowPreBind.release = anyio.Event(), anyio.Event()
    slow = "profiles: [{plugins: {preBind: {enabled: [{name: SlowPreBind}]}}}]\n"
    async with world(tmp_path, nodes=1) as w, serving() as first, serving() as second:

        def bind(question: Any) -> Any:
            w.cluster.bind(question["PodNamespace"], question["PodName"], question["Node"])
            return {}

        for service in (first, second):
            service.answer("bind", bind)
        async with w.daemon(first.config(bindVerb="bind") + slow, SlowPreBind) as daemon:
            w.add_pod("p")
            with anyio.fail_after(60):
                await SlowPreBind.called.wait()
            await apply_config(daemon, second.config(bindVerb="bind") + slow, SlowPreBind)
            await anyio.wait_all_tasks_blocked()  # idle extenders are closed now
            SlowPreBind.release.set()
            await w.until(lambda: bool(w.node_of("p")))
        assert (len(first.asked("bind")), len(second.asked("bind"))) == (1, 0)


def _extended(service: Service) -> str:
    return service.config(filterVerb="filter", httpTimeout="30s")


# -- what is watched --------------------------------------------------------------------------


async def test_gang_scheduling_can_be_enabled(tmp_path: Path) -> None:
    config, group, _ = examples()
    async with world(tmp_path, nodes=3, cpu="1") as w:
        w.cluster.create("podgroups.scheduling.k8s.io", group)
        async with w.daemon(with_plugin("Hold", "other"), Hold) as daemon:
            await daemon.engine.synced.wait()
            assert {r.resource for r in daemon.watch.reflectors} == {*Resource}
            add_worker(w, 0)
            add_worker(w, 1)
            await apply_config(daemon, config)
            w.add_pod("lone")
            await w.until(lambda: bool(w.node_of("lone")))
            assert set(daemon.cluster.queue.gated) == {"default/worker-0", "default/worker-1"}
            add_worker(w, 2)
            await w.until(lambda: not w.unbound())
            watched = {r.resource for r in daemon.watch.reflectors}
            assert GroupResource.POD_GROUPS in watched
        await check_replay(w, Hold)


async def test_gate_of_pod_level_resources_can_be_enabled(tmp_path: Path) -> None:
    gates = "PodLevelResources: false, InPlacePodLevelResourcesVerticalScaling: false"
    three_cores = {"requests": {"cpu": "3"}}
    async with world(tmp_path, nodes=1) as w:
        w.add_pod("first", "0", resources=three_cores)
        async with w.daemon(OWN + f"featureGates: {{{gates}}}\n") as daemon:
            await w.until(lambda: w.node_of("first") == "n0")
            await apply_config(daemon, OWN)
            w.add_pod("second", "0", resources=three_cores)
            await w.until(lambda: "Insufficient cpu" in w.message("second"))
            assert daemon.cluster.nodes.requested("cpu")[0] == 3000
        await check_replay(w)


async def test_sessions_can_be_enabled_and_see_finished_pods(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        w.add_pod("done", schedulerName="kube-batch")
        w.cluster.patch(
            "pods", "done", {"status": {"phase": "Succeeded"}}, namespace="default",
            subresource="status",
        )  # fmt: skip
        async with w.daemon(profiles("{}")) as daemon:
            await daemon.engine.synced.wait()
            assert await apply_config(daemon, BATCH) == ConfigApplied(True, ())
            w.add_pod("p", schedulerName="kube-batch")
            await w.until(lambda: w.node_of("p") == "n0")
            assert [*daemon.cluster.sessions.finished] == ["default/done"]
            assert not daemon.cluster.profiles
        await check_replay(w)
