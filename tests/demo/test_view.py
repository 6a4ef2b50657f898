"""Output of a running demo."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from asched.cli.demo.view import DemoStatus, LineView, NodeUtilization, Reason, panel

STATUS = DemoStatus(
    elapsed_s=2.5, total=110, feasible=100, created=60, bound=50, recent_per_s=40, nodes=12,
    active=3, backoff=2, unschedulable=4, gated=1, in_flight=5,
    utilization=(NodeUtilization("cpu", 32.0, 64.0), NodeUtilization("nvidia.com/gpu", 0, 0)),
    reasons=tuple(Reason(9 - n, f"reason [{n}]") for n in range(8)),
    latest=("default/a to n1, best of [bold]3",),
    notices=("2 nodes joined: h ...",),
)  # fmt: skip


def drawn(width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(panel(STATUS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_panel_contains_all_figures_without_markup() -> None:
    text = drawn(100)
    for part in (
        "60 / 110", "50 / 100", "pods/s 40", "unschedulable 4", "gated 1", "50%  32 of 64 cores",
        "0%  0 of 0", "9  reason [0]", "for 2 other reasons", "best of [bold]3", "2 nodes joined",
    ):  # fmt: skip
        assert part in text, part


def test_panel_fits_narrow_terminal() -> None:
    assert all(len(line) <= 60 for line in drawn(60).splitlines())


def test_line_view_prints_each_second_and_the_last_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import dataclasses

    view = LineView()
    for elapsed_s in (0.2, 0.4, 1.1, 1.3):
        view.show(dataclasses.replace(STATUS, elapsed_s=elapsed_s))
    view.show(dataclasses.replace(STATUS, elapsed_s=1.5, bound=100))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("2 nodes joined: h ...")
    assert [line.split()[0] for line in lines[1:]] == ["0.2", "1.3", "1.5"]
    assert "bound 100/100" in lines[-1]
