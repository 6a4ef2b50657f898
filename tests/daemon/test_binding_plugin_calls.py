"""Time limits and cancellation of plugins of the binding cycle."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from asched.daemon.effects import reconciler
from asched.framework.binding import BindingClient
from asched.framework.interface import BindPlugin, PostBindPlugin, PreBindPlugin
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from tests.daemon.world import KUBE, OWN, World, world

PATIENT = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: Patient}]}}\n"
TIDY = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: Patient}, {name: Tidy}]}}\n"
OWN_BINDER = KUBE + (
    "profiles:\n- plugins:\n    bind:\n      enabled: [{name: Undecided}]\n"
    "      disabled: [{name: DefaultBinder}]\n"
)


class Patient(PreBindPlugin):
    """Waits forever unless ``waits`` is False."""

    name: ClassVar[str] = "Patient"
    api_version: ClassVar[int] = 1
    begun: ClassVar[list[float]] = []
    ended: ClassVar[list[str]] = []
    waits: ClassVar[bool] = True

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        self.begun.append(client.context.remaining_s)
        try:
            if self.waits:
                await anyio.sleep_forever()
        finally:
            self.ended.append(client.context.cancel_reason)
        return SUCCESS


def forget() -> None:
    Patient.begun.clear()
    Patient.ended.clear()
    Patient.waits = True


async def until_begun(w: World, pods: int) -> None:
    with anyio.fail_after(60):
        while len(Patient.begun) < pods:
            await anyio.lowlevel.checkpoint()
    assert len(Patient.begun) == pods


async def test_pod_deletion_cancels_plugin(tmp_path: Path) -> None:
    forget()
    async with world(tmp_path, nodes=1) as w, w.daemon(PATIENT, Patient):
        w.add_pod("p")
        await until_begun(w, 1)
        assert 590 < Patient.begun[0] <= 600
        w.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
        Patient.waits = False
        w.add_pod("next")
        await w.until(lambda: w.node_of("next") == "n0")
        assert sorted(Patient.ended) == ["", "the pod is gone"]


class Tidy(PostBindPlugin):
    """Waits until it is cancelled, then delays its cleanup."""

    name: ClassVar[str] = "Tidy"
    api_version: ClassVar[int] = 1
    waiting: ClassVar[anyio.Event]
    tidied: ClassVar[anyio.Event]

    async def post_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        self.waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.tidied.wait()


async def test_pod_deletion_does_not_cancel_plugin_of_recreated_pod(tmp_path: Path) -> None:
    forget()
    Patient.waits = False
    Tidy.waiting, Tidy.tidied = anyio.Event(), anyio.Event()
    async with world(tmp_path, nodes=1) as w, w.daemon(TIDY, Patient, Tidy) as daemon:
        w.add_pod("p")
        with anyio.fail_after(60):
            await Tidy.waiting.wait()
        Patient.waits = True
        w.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
        w.add_pod("p")
        await until_begun(w, 2)
        Tidy.tidied.set()
        with anyio.fail_after(60):
            while daemon.engine.stats.bound < 1:
                await anyio.lowlevel.checkpoint()
        assert Patient.ended == [""]
        assert not w.message("p")


async def test_stop_cancels_plugin_and_next_start_calls_it_again(tmp_path: Path) -> None:
    forget()
    async with world(tmp_path, nodes=1) as w:
        async with w.daemon(PATIENT, Patient):
            w.add_pod("p")
            await until_begun(w, 1)
        assert Patient.ended == ["the scheduler stops"]
        assert not w.node_of("p")
        Patient.waits = False
        async with w.daemon(PATIENT, Patient):
            await w.until(lambda: w.node_of("p") == "n0")
        assert len(Patient.begun) == 2


async def test_configured_time_limit_applies(tmp_path: Path) -> None:
    forget()
    limited = f"{PATIENT}---\n{OWN}plugins: [{{name: Patient, timeLimit: 100ms}}]\n"
    async with world(tmp_path, nodes=1) as w, w.daemon(limited, Patient):
        w.add_pod("p")
        await w.until(lambda: bool(w.message("p")))
        assert w.message("p") == 'running PreBind plugin "Patient": no answer within 0.1 s'
        assert Patient.ended[0] == ""


class Undecided(BindPlugin):
    """Binds by itself, and does not return."""

    name: ClassVar[str] = "Undecided"
    api_version: ClassVar[int] = 1
    world: ClassVar[World]

    @property
    def time_limit_s(self) -> float:
        return 0.1

    async def bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        if pod.name == "bound":
            self.world.cluster.bind("default", pod.name, node_name)
        await anyio.sleep_forever()
        return SUCCESS


async def test_cancelled_bind_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "MAX_REQUEST_AGE_S", 0.2)
    async with world(tmp_path, nodes=1) as w:
        Undecided.world = w
        async with w.daemon(OWN_BINDER, Undecided):
            w.add_pod("unbound")
            await w.until(lambda: bool(w.message("unbound")))
            assert w.message("unbound") == 'running Bind plugin "Undecided": no answer within 0.1 s'
            w.add_pod("bound")
            await w.until(lambda: "Scheduled" in [reason for reason, _ in w.events("bound")])
            assert not w.message("bound")


class Undoing(PreBindPlugin):
    """Fails in PreBind. Its undo waits until the test allows it to end."""

    name: ClassVar[str] = "Undoing"
    api_version: ClassVar[int] = 1
    undoing: ClassVar[anyio.Event]
    allowed: ClassVar[anyio.Event]
    undone: ClassVar[list[str]] = []

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return Status.error("no")

    async def undo_pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> None:
        self.undoing.set()
        await self.allowed.wait()
        self.undone.append(pod.key)


async def test_deletion_of_the_pod_does_not_cancel_undo(tmp_path: Path) -> None:
    Undoing.undoing, Undoing.allowed = anyio.Event(), anyio.Event()
    Undoing.undone.clear()
    enabled = KUBE + "profiles:\n- plugins: {multiPoint: {enabled: [{name: Undoing}]}}\n"
    async with world(tmp_path, nodes=1) as w, w.daemon(enabled, Undoing) as daemon:
        w.add_pod("p")
        with anyio.fail_after(60):
            await Undoing.undoing.wait()
            w.cluster.delete("pods", "p", namespace="default", grace_period_s=0)
            while daemon.cluster.pods:
                await anyio.lowlevel.checkpoint()
            Undoing.allowed.set()
            while daemon.engine.effects.in_flight:
                await anyio.lowlevel.checkpoint()
    assert Undoing.undone == ["default/p"]
