"""``asched demo``: a cluster, a workload and the daemon, on one machine and over real HTTP.

The API server with its simulated kubelets is a separate process. So the figures of the scheduler do
not include the cost of the API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from asched.cli.options import takes_options

MIN_NODES: Final = 10


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    nodes: int = typer.Option(200, help="Nodes at the start.", min=MIN_NODES)
    pods: int = typer.Option(2000, help="Schedulable pods.", min=1)
    seed: int = typer.Option(1, help="Seed of the random workload.", min=0)
    over: float = typer.Option(6.0, help="Seconds during which the pods are created.", min=0.1)
    timeout: float = typer.Option(
        120.0, help="Seconds after which the demo fails if pods are not bound.", min=0
    )
    config: Path | None = typer.Option(
        None, metavar="FILE", help="The configuration, as for asched run. Default: defaults."
    )
    journal: Path | None = typer.Option(
        None, help="A new file for the journal. Default: in a new temporary folder."
    )
    keep: bool = typer.Option(
        False,
        "--keep/--exit",
        help="Keep cluster and daemon running after the summary, until Ctrl-C.",
    )
    ui: bool = typer.Option(
        False, "--ui", help="Open the journal in the browser while it grows; keeps running."
    )


@takes_options
def demo(options: DemoOptions) -> None:
    """Run a simulated cluster with a workload and a live view.

    The API server is a separate process; all parts communicate over HTTP. The workload includes a
    few unschedulable pods, each for a different reason. All pods use the first profile of the
    configuration. Exits with 0 only if every schedulable pod was bound.
    """
    from asched.cli.demo.runner import run_demo

    raise typer.Exit(0 if run_demo(options) else 1)
