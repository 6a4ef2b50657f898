"""``asched apiserver``: an embedded cluster to try things on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from asched.apiserver.http import HOST, ApiServer, TlsFiles
from asched.apiserver.kubelet import RUN_SECONDS, KubeletTimings
from asched.apiserver.serve import ServeOptions, serve_forever
from asched.cli.errors import BadInput, CommandError
from asched.cli.main import command_app

app = command_app("Serve an embedded cluster: a Kubernetes API in memory, with simulated kubelets.")

DEFAULT_KUBECONFIG: Final = Path("asched-kubeconfig.yaml")
_TIMINGS: Final = KubeletTimings()
_INPUT_CHUNK: Final = 4096


_Certificate = Annotated[
    Path | None,
    typer.Option(
        help="Serve HTTPS with it (PEM, for the address); the kubeconfig trusts it.",
        exists=True,
        dir_okay=False,
    ),
]
_Key = Annotated[
    Path | None,
    typer.Option(help="The certificate's private key (PEM).", exists=True, dir_okay=False),
]
_SchedulerKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Write one here with the permissions of system:kube-scheduler, no more;"
        " turns authentication on."
    ),
]
_FaultsText = Annotated[
    str,
    typer.Option(
        help="What goes wrong, such as 429*3@pods/binding,drop*2,drop-after@pods/binding,"
        "delay=0.5*10@nodes,malformed*2,watch-close=5."
    ),
]
_UntilStdinCloses = Annotated[
    bool,
    typer.Option("--until-stdin-closes", help="Stop also when standard input ends (for programs)."),
]


@app.command()
def apiserver(
    address: Annotated[
        str, typer.Option(help="Where to listen: it is for this machine alone.")
    ] = HOST,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    tls_certificate: _Certificate = None,
    tls_key: _Key = None,
    nodes: Annotated[int, typer.Option(help="Simulated nodes to begin with.", min=0)] = 0,
    kubeconfig: Annotated[
        Path, typer.Option(help="Write the administrator's kubeconfig here.")
    ] = DEFAULT_KUBECONFIG,
    scheduler_kubeconfig: _SchedulerKubeconfig = None,
    pod_start: Annotated[
        float, typer.Option(help="Seconds from a pod's binding to Running.", min=0)
    ] = _TIMINGS.start_s,
    pod_stop: Annotated[
        float, typer.Option(help="Seconds from a pod's deletion to its end.", min=0)
    ] = _TIMINGS.terminate_s,
    heartbeat: Annotated[
        float, typer.Option(help="Seconds between renewals of node leases; 0 for none.", min=0)
    ] = 10.0,
    kubelets: Annotated[
        bool, typer.Option(help="Without them bound pods stay Pending and leave no sooner.")
    ] = True,
    faults: _FaultsText = "",
    until_stdin_closes: _UntilStdinCloses = False,
) -> None:
    """Serve an embedded cluster: a Kubernetes API in memory, with simulated kubelets.

    kubectl and schedulers can use it without special flags. Nothing is kept when it stops (Ctrl-C
    or SIGTERM). The pod annotation asched.dev/run-seconds lets a pod succeed after so many seconds.
    """
    assert RUN_SECONDS == "asched.dev/run-seconds", "the help text above names it"
    if (tls_certificate is None) != (tls_key is None):
        raise BadInput("asched: --tls-certificate and --tls-key go together")
    options = ServeOptions(
        host=address,
        port=port,
        tls=TlsFiles(tls_certificate, tls_key) if tls_certificate and tls_key else None,
        nodes=nodes,
        kubeconfig=kubeconfig,
        scheduler_kubeconfig=scheduler_kubeconfig,
        faults=faults,
        kubelets=kubelets,
        timings=KubeletTimings(pod_start, pod_stop, heartbeat or None),
    )
    try:
        anyio.run(_serve, options, until_stdin_closes, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        raise _command_error(_cause(group), options) from None


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _cause(first) if isinstance(first, BaseExceptionGroup) else first


def _command_error(error: BaseException, options: ServeOptions) -> BaseException:
    if isinstance(error, ValueError):
        return BadInput(f"asched: {error}")
    if isinstance(error, OSError):
        return CommandError(f"asched: {_described(error, options)}")
    return error


def _described(error: OSError, options: ServeOptions) -> str:
    if error.filename:
        return f"cannot write {error.filename}: {error.strerror}"
    return f"cannot listen on {options.host}:{options.port}: {os.strerror(error.errno or 0)}"


async def _serve(options: ServeOptions, until_stdin_closes: bool) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_stop_on_signal, group.cancel_scope)
        if until_stdin_closes:
            group.start_soon(_stop_at_end_of_input, group.cancel_scope)
        await serve_forever(options, on_ready=lambda server: _announce(server, options))


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def _stop_at_end_of_input(scope: anyio.CancelScope) -> None:
    stdin = sys.stdin.fileno()
    while True:
        try:
            await anyio.wait_readable(stdin)
        except PermissionError:
            break  # a file, or /dev/null: there is nobody to wait for
        if not os.read(stdin, _INPUT_CHUNK):
            break
    scope.cancel()


def _announce(server: ApiServer, options: ServeOptions) -> None:
    lines = [f"serving a cluster of {options.nodes} nodes at {server.url}, until Ctrl-C"]
    if options.kubeconfig is not None:
        path = options.kubeconfig.absolute()
        lines += [
            "",
            "  in another terminal:",
            f"    export KUBECONFIG={path}",
            "    kubectl get nodes",
            f"    asched run --kubeconfig {options.scheduler_kubeconfig or path}",
        ]
    print("\n".join(lines), flush=True)
