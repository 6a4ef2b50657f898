"""``asched apiserver``: a simulated cluster to try things on."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import typer

from asched.apiserver.group_forms import KubernetesVersion
from asched.cli.errors import BadInput, CommandError, as_command_error
from asched.cli.options import takes_options

if TYPE_CHECKING:
    from asched.apiserver.dra.devices import DeviceSpec
    from asched.apiserver.http import ApiServer, ServeOptions

_INPUT_CHUNK: Final = 4096


@dataclass(frozen=True, kw_only=True)
class ApiServerOptions:
    address: str = typer.Option("127.0.0.1", help="Loopback address to listen on.")
    port: int = typer.Option(0, help="0 selects a free port.", min=0, max=65535)
    tls_certificate: Path | None = typer.Option(
        None,
        help="Serve HTTPS with this certificate (PEM); the kubeconfig trusts it.",
        exists=True,
        dir_okay=False,
    )
    tls_key: Path | None = typer.Option(
        None, help="Private key of the certificate (PEM).", exists=True, dir_okay=False
    )
    nodes: int = typer.Option(0, help="Number of simulated nodes.", min=0)
    devices: list[str] = typer.Option(
        [],
        help="Devices of each node, COUNT[,NAME=VALUE...]: 8,model=A100,memory=80Gi. Values with a "
        "unit are capacities, others attributes. driver=NAME sets the driver and the DeviceClass, "
        "wait=TYPE a binding condition. Repeat the option for several drivers.",
    )
    kubeconfig: Path = typer.Option(
        Path("asched-kubeconfig.yaml"), help="Where to write the administrator's kubeconfig."
    )
    scheduler_kubeconfig: Path | None = typer.Option(
        None,
        help="Where to write a kubeconfig for system:kube-scheduler; turns authentication on.",
    )
    pod_start: float = typer.Option(0.5, help="Seconds from a pod's binding to Running.", min=0)
    pod_stop: float = typer.Option(0.2, help="Seconds from a pod's deletion to its removal.", min=0)
    heartbeat: float = typer.Option(
        10.0, help="Seconds between renewals of node leases; 0 for none.", min=0
    )
    kubelets: bool = typer.Option(
        True, help="Simulate kubelets. Without them bound pods stay Pending."
    )
    controllers: bool = typer.Option(
        True,
        help="Make pods of Deployments, StatefulSets, DaemonSets and Jobs, and delete what belongs "
        "to deleted objects.",
    )
    kubernetes_version: KubernetesVersion = typer.Option(
        KubernetesVersion.V1_36,
        help="Serve Workload and PodGroup as this version does; both: as in an upgrade.",
    )
    faults: str = typer.Option(
        "",
        help="Faults to inject, such as 429*3@pods/binding,drop*2,drop-after@pods/binding,"
        "delay=0.5*10@nodes,malformed*2,watch-close=5.",
    )
    until_stdin_closes: bool = typer.Option(
        False, "--until-stdin-closes", help="Stop also at the end of standard input."
    )


@takes_options
def apiserver(options: ApiServerOptions) -> None:
    """Serve a simulated cluster: a Kubernetes API in memory.

    Works with kubectl and schedulers. Ctrl-C or SIGTERM stops the server and discards the cluster.
    A pod with the annotation asched.dev/run-seconds succeeds after that many seconds.
    """
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise BadInput("--tls-certificate and --tls-key go together")
    from asched.apiserver.dra.devices import DeviceSpec

    try:
        devices = tuple(map(DeviceSpec.parse, options.devices))
    except ValueError as error:
        raise BadInput(f"--{error}") from None
    if len({spec.driver for spec in devices}) < len(devices):
        raise BadInput("--devices: each needs a driver of its own, such as driver=nic.example.com")
    try:
        anyio.run(_serve, options, devices, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        raise _command_error(group, options) from None


async def _serve(options: ApiServerOptions, devices: tuple[DeviceSpec, ...]) -> None:
    from asched.apiserver.http import ServeOptions, TlsFiles, serve_forever
    from asched.apiserver.kubelet import KubeletTimings

    certificate, key = options.tls_certificate, options.tls_key
    serve = ServeOptions(
        host=options.address,
        port=options.port,
        tls=TlsFiles(certificate, key) if certificate and key else None,
        nodes=options.nodes,
        kubeconfig=options.kubeconfig,
        scheduler_kubeconfig=options.scheduler_kubeconfig,
        faults=options.faults,
        kubelets=options.kubelets,
        controllers=options.controllers,
        devices=devices,
        version=options.kubernetes_version,
        timings=KubeletTimings(options.pod_start, options.pod_stop, options.heartbeat or None),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(_stop_on_signal, group.cancel_scope)
        if options.until_stdin_closes:
            group.start_soon(stop_at_end_of_input, group.cancel_scope)
        await serve_forever(serve, on_ready=lambda server: _announce(server, serve))


def _command_error(
    group: BaseExceptionGroup[BaseException], options: ApiServerOptions
) -> BaseException:
    error = as_command_error(group, bad_input=(ValueError,))
    if not isinstance(error, OSError):
        return error
    if error.filename:
        return CommandError(f"cannot write {error.filename}: {error.strerror}")
    reason = os.strerror(error.errno or 0)
    return CommandError(f"cannot listen on {options.address}:{options.port}: {reason}")


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def stop_at_end_of_input(scope: anyio.CancelScope) -> None:
    """Cancel the scope when standard input ends: the process that started this one is gone."""
    stdin = sys.stdin.fileno()
    while True:
        try:
            await anyio.wait_readable(stdin)
        except PermissionError:
            break  # a file or /dev/null, which is at its end at once
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
