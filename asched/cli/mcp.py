"""``asched mcp``: a server of the Model Context Protocol on a journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import typer

from asched.cli.errors import BadInput, CommandError
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    installed_plugins,
    journal_keys,
    log_warnings,
    takes_options,
)

if TYPE_CHECKING:
    from asched.audit.visibility import Viewer, Visible
    from asched.kube.reviews import ReviewedUser
    from asched.ui.cluster_access import ClusterAccess


@dataclass(frozen=True, kw_only=True)
class McpOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    listen: str | None = typer.Option(
        None,
        metavar="HOST:PORT",
        help="Serve HTTP on this loopback address instead of stdin and stdout. Port 0 selects a"
        " free port.",
    )
    namespace: list[str] = typer.Option(
        [],
        metavar="NAMESPACE",
        help="Answer only about pods in this namespace. Repeatable. Default: all.",
    )
    token_file: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Answer what the user of this token of the cluster may list, as the API server says.",
    )
    kubeconfig: Path | None = typer.Option(
        None, help="With --token-file: of the cluster that reviews it. Default: as asched run."
    )


@takes_options
def mcp(options: McpOptions) -> None:
    """Serve questions about a journal as MCP tools.

    Read-only, in the Model Context Protocol (docs/how-to/mcp.md): explain, decision, history, fit
    and what_if. Speaks over stdin and stdout with the program that starts it. Needs the extra
    asched[mcp]. With --namespace or --token-file, answers leave out what else the journal has.
    """
    if options.namespace and options.token_file is not None:
        raise BadInput("--namespace and --token-file exclude each other")
    if "" in options.namespace:
        raise BadInput("--namespace is empty: give the name of a namespace")
    if options.kubeconfig is not None and options.token_file is None:
        raise BadInput("--kubeconfig needs --token-file")
    try:
        from asched.mcp.server import JournalServer
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in _OF_EXTRA:
            raise BadInput("asched mcp needs an extra: pip install 'asched[mcp]'") from None
        raise
    log_warnings()
    address = None if options.listen is None else _loopback(options.listen)

    async def serve() -> None:
        async with _viewer(options) as viewer:
            server = JournalServer(options.journal, installed_plugins(), journal_keys(), viewer)
            if address is None:
                await server.serve_stdio()
                return
            try:
                await server.serve_http(*address, _announce)
            except OSError as error:
                reason = error.strerror or error
                raise CommandError(f"cannot listen on {options.listen}: {reason}") from None

    anyio.run(serve)


_OF_EXTRA = ("mcp", "mcp_types", "uvicorn", "starlette")


def _loopback(text: str) -> tuple[str, int]:
    """Raises BadInput."""
    from asched.ui.security import is_loopback

    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535 or not is_loopback(host):
        raise BadInput(f"--listen {text}: not a loopback address, such as 127.0.0.1:8765")
    return host, int(port)


@asynccontextmanager
async def _viewer(options: McpOptions) -> AsyncIterator[Viewer]:
    """Who asks. Raises KubeConfigError."""
    from asched.mcp.access import NamespaceViewer
    from asched.mcp.server import UNRESTRICTED

    if options.token_file is None:
        names = frozenset(options.namespace)
        yield NamespaceViewer(names) if names else UNRESTRICTED
        return
    from asched.cli.ui import UiReviewer
    from asched.kube.connection import connect
    from asched.kube.reviews import ApiReviewer
    from asched.ui.cluster_access import ClusterAccess

    async with connect(options.kubeconfig) as client:
        yield TokenViewer(ClusterAccess(UiReviewer(ApiReviewer(client))), options.token_file)


class TokenViewer:
    """The user of a token in a file, which may be replaced meanwhile."""

    def __init__(self, access: ClusterAccess[ReviewedUser], file: Path) -> None:
        self._access = access
        self._file = file

    async def visible(self, namespaces: frozenset[str]) -> Visible:
        """Raises NotVisibleError without a valid token, and if the API server does not answer."""
        from asched.audit.visibility import NotVisibleError
        from asched.ui.errors import ReviewUnavailableError

        try:
            token = await anyio.Path(self._file).read_text(encoding="utf-8")
            viewer = await self._access.reader(token.strip())
            if viewer is not None:
                return await viewer.visible(namespaces)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise NotVisibleError(f"{self._file}: cannot be read: {reason}") from None
        except ReviewUnavailableError as error:
            raise NotVisibleError(f"{error}; try again") from None
        raise NotVisibleError(f"{self._file}: not a valid token of the cluster")


def _announce(url: str) -> None:
    typer.echo(f"serving at {url}, until Ctrl-C")
