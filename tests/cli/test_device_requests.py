"""The table of what requests for devices find, by groups of nodes."""

from __future__ import annotations

import msgspec
import pytest

from asched.audit.devices import DeviceRequestExplanation, request_explanation
from asched.audit.explanation import NodeExplanation
from asched.cli.device_requests import print_device_requests
from asched.dra import Inventory, NodeView
from asched.dra.cel_selectors import cel_selector
from asched.dra.diagnosis import ClaimDiagnoser
from asched.model.resource_claims import Device, DeviceAttribute
from tests.plugins.dynamic_resources.objects import a_claim, a_class, a_request, a_slice


def request(
    name: str, wanted: int | None, suitable: int, **refused: int
) -> DeviceRequestExplanation:
    reasons = {reason.replace("_", " "): number for reason, number in refused.items()}
    return DeviceRequestExplanation(
        "d/c",
        name,
        wanted,
        8,
        suitable,
        reasons,
        missing=max(0, (wanted or 0) - suitable),
        matching="class gpu with device.driver == 'x'",
    )


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_nodes_with_equal_findings_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    busy, few = request("a", 2, 0, in_use=8), request("a", 2, 1, not_tolerated=7)
    nodes = [
        NodeExplanation(f"n{number}", False, requests=(busy if number else few,))
        for number in range(4)
    ]
    print_device_requests(nodes)
    printed = lines(capsys)
    assert "3 nodes such as n1 d/c a 2 0 of 8 8 in use 2 more matching devices" in printed
    assert "n0 d/c a 2 1 of 8 7 not tolerated 1 more matching device" in printed
    assert "d/c a class gpu with device.driver == 'x'" in printed


def test_requests_that_fit_alone_and_broken_pools_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem = ("pool gpu/p: not all of its slices are published",)
    found = (request("a", 2, 2), request("b", None, 3))
    print_device_requests([NodeExplanation("n", False, requests=found, device_problems=problem)])
    printed = lines(capsys)
    assert any(
        line.startswith("n d/c a 2 2 of 8 enough for this request alone") for line in printed
    )
    assert "n d/c b all 3 of 8 all matching devices suitable" in printed
    assert f"n {problem[0]}" in printed


def test_nothing_is_printed_without_devices(capsys: pytest.CaptureFixture[str]) -> None:
    print_device_requests([NodeExplanation("n", False)])
    assert not lines(capsys)


def test_failing_selector_is_not_solved_by_devices(capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(name="gpu-0", attributes={"model": DeviceAttribute(string="A100")})
    inventory = Inventory(cel_selector)
    inventory.put_class(a_class())
    inventory.put_slice(a_slice("n", msgspec.to_builtins(device)))
    selectors = [{"cel": {"expression": 'device.attributes["other.example.com"].x == 1'}}]
    claim = a_claim("c", a_request(selectors=selectors))
    (found,) = ClaimDiagnoser(inventory).run((claim,), NodeView("n", {})).requests
    print_device_requests([NodeExplanation("n", False, requests=(request_explanation(found),))])
    assert any("selectors that do not fail on any device" in line for line in lines(capsys))
