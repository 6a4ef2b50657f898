"""``kubectl asched``: questions about pods to the asched of a cluster.

kubectl runs an executable ``kubectl-asched`` in the PATH as its command ``asched``. The journal is
read where it is: in the daemon's container. With ``ASCHED_JOURNAL`` or ``--journal``, here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.main import RootGroup

SELECTOR: Final = "app.kubernetes.io/name=asched"
"""The label of the daemon's pods, as the Helm chart sets it."""
_CONTAINER: Final = "asched"
_PLACE: Final = 'jsonpath={range .items[*]}{.metadata.namespace}{" "}{.metadata.name}{"\\n"}{end}'
_HOLDERS: Final = "jsonpath={.items[*].spec.holderIdentity}"
_PASS_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True}

app = typer.Typer(
    name="kubectl asched",
    cls=RootGroup,
    help="Ask the asched of a cluster about pods.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

_Pod = Annotated[str, typer.Argument(metavar="POD", help="NAME or NAMESPACE/NAME.")]
_Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", help="The pod's namespace. Default: that of the current context."
    ),
]
_Context = Annotated[str, typer.Option("--context", help="A context of the kubeconfig.")]
_Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="The kubeconfig to use.")]


@app.command("why", context_settings=_PASS_ON)
def why(
    context: typer.Context,
    pod: _Pod,
    namespace: _Namespace = "",
    kube_context: _Context = "",
    kubeconfig: _Kubeconfig = "",
) -> None:
    """Why a pod is pending, and what would unblock it; or why it is on its node.

    Other options are those of asched explain.
    """
    _ask("explain", pod, context.args, namespace, _Kubectl(kube_context, kubeconfig))


@app.command("history", context_settings=_PASS_ON)
def history(
    context: typer.Context,
    pod: _Pod,
    namespace: _Namespace = "",
    kube_context: _Context = "",
    kubeconfig: _Kubeconfig = "",
) -> None:
    """What happened to a pod: queues, attempts, binding.

    Other options are those of asched history.
    """
    _ask("history", pod, context.args, namespace, _Kubectl(kube_context, kubeconfig))


class _Kubectl:
    """Runs kubectl with the context and kubeconfig of the user."""

    def __init__(self, context: str, kubeconfig: str) -> None:
        found = shutil.which("kubectl")
        if found is None:
            raise BadInput("kubectl is not in the PATH")
        self._command, self._context = [found], context
        if context:
            self._command += ["--context", context]
        if kubeconfig:
            self._command += ["--kubeconfig", kubeconfig]

    def printed(self, *arguments: str) -> str:
        """Its standard output. Raises CommandError with its last line of standard error."""
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise CommandError(f"kubectl {arguments[0]}: {said[-1]}")
        return done.stdout

    def lacks_context(self) -> bool:
        """Whether the user names no context and the kubeconfig has no current one."""
        try:
            return not (self._context or self.printed("config", "current-context").strip())
        except CommandError:
            return True

    def run(self, *arguments: str) -> int:
        """Its exit code; its output is that of this process."""
        return subprocess.run([*self._command, *arguments], check=False).returncode


def _ask(command: str, pod: str, options: Sequence[str], namespace: str, kubectl: _Kubectl) -> None:
    named = any(option.partition("=")[0] == "--journal" for option in options)
    local = named or bool(os.environ.get("ASCHED_JOURNAL"))
    # A journal is also read where no cluster is configured. It may have the name in any namespace.
    if "/" not in pod and not (local and not namespace and kubectl.lacks_context()):
        current = namespace or kubectl.printed(
            "config", "view", "--minify", "-o", "jsonpath={..namespace}"
        )
        pod = f"{current.strip() or 'default'}/{pod}"
    words = ["asched", command, pod, *options]
    if local:
        code = subprocess.run([sys.executable, "-m", *words], check=False).returncode
    else:
        daemon_namespace, daemon = _daemon(kubectl)
        width = f"COLUMNS={shutil.get_terminal_size().columns}"
        executed = ("env", width, *words) if sys.stdout.isatty() else words
        place = ("--namespace", daemon_namespace, daemon, "--container", _CONTAINER)
        code = kubectl.run("exec", *place, "--", *executed)
    raise typer.Exit(code)


def _daemon(kubectl: _Kubectl) -> tuple[str, str]:
    """Namespace and name of the pod of a running daemon, of several replicas of the leader."""
    lines = kubectl.printed(
        *("get", "pods", "--all-namespaces", "--selector", SELECTOR),
        *("--field-selector", "status.phase=Running", "-o", _PLACE),
    ).splitlines()
    if not lines:
        raise BadInput(
            f"no running pod has the label {SELECTOR}; name the journal with --journal or"
            " ASCHED_JOURNAL"
        )
    found = [(namespace, name) for namespace, _, name in (line.partition(" ") for line in lines)]
    if len(found) == 1:
        return found[0]
    leaders = kubectl.printed("get", "leases", "--namespace", found[0][0], "-o", _HOLDERS).split()
    leading = [pod for pod in found if any(holder.startswith(pod[1]) for holder in leaders)]
    return (leading or found)[0]


def main() -> None:
    app()


if __name__ == "__main__":
    main()
