"""docs/reference/compatibility.md shows what the code has."""

from __future__ import annotations

from typing import Any, ClassVar

from asched.config.registry import PluginRegistry
from asched.framework.binding import BindingClient
from asched.framework.cycle_state import CycleState
from asched.framework.interface import PreBindPlugin, ReservePlugin, ReserveResult
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from tests.docs.compatibility_page import PAGE, text


def test_page_is_current() -> None:
    installed = PluginRegistry.discover()
    assert PAGE.read_text() == text(installed), "run python -m tests.docs.compatibility_page"


class Rejecting(ReservePlugin):
    """Cannot allocate claims."""

    name: ClassVar[str] = "DynamicResources"
    api_version: ClassVar[int] = 1

    def reserve(self, state: CycleState, pod: PodInfo, node_name: str) -> ReserveResult:
        return ReserveResult()


class Allocating(Rejecting, PreBindPlugin):
    """Serves the points in which claims are allocated."""

    api_version: ClassVar[int] = 1
    honors_gates: ClassVar[frozenset[str]] = frozenset({"DRADeviceTaints"})

    async def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return SUCCESS


def rows(plugin: type[Any]) -> list[str]:
    """The rows of gates about claims."""
    page = text(PluginRegistry.discover().including(plugin))
    return [line for line in page.splitlines() if line.startswith(("| DRA", "| Dynamic"))]


def test_rows_about_claims_follow_the_installed_plugin() -> None:
    assert not any("| yes |" in row for row in rows(Rejecting))
    found = rows(Allocating)
    assert "| DRADeviceTaints | beta | on | yes | yes | taints of devices |" in found
    assert "| DRAPrioritizedList | GA | on | no | yes | `firstAvailable` requests |" in found
    assert "| DynamicResourceAllocation | GA | on | no (locked) | yes | ResourceClaims |" in found
    (plugin,) = [row for row in found if row.startswith("| DynamicResources | 2 ")]
    assert "differs | does not serve preEnqueue, preFilter" in plugin
