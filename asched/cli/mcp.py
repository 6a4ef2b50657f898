"""``asched mcp``: a server of the Model Context Protocol on a journal."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class McpOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    listen: str | None = typer.Option(
        None,
        metavar="HOST:PORT",
        help="Serve HTTP on this loopback address instead of stdin and stdout. Port 0 selects a"
        " free port.",
    )


@takes_options
def mcp(options: McpOptions) -> None:
    """Serve questions about a journal as MCP tools.

    Read-only, in the Model Context Protocol (docs/mcp.md): explain, decision, history, fit and
    what_if. Speaks over stdin and stdout with the program that starts it. Needs the extra
    asched[mcp].
    """
    try:
        from asched.mcp.server import JournalServer
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in _OF_EXTRA:
            raise BadInput("asched mcp needs an extra: pip install 'asched[mcp]'") from None
        raise
    log_warnings()
    server = JournalServer(options.journal, installed_plugins(), journal_keys())
    if options.listen is None:
        anyio.run(server.serve_stdio)
        return
    host, port = _loopback(options.listen)
    try:
        anyio.run(server.serve_http, host, port, _announce)
    except OSError as error:
        reason = error.strerror or error
        raise CommandError(f"cannot listen on {options.listen}: {reason}") from None


_OF_EXTRA = ("mcp", "mcp_types", "uvicorn", "starlette")


def _loopback(text: str) -> tuple[str, int]:
    """Raises BadInput."""
    from asched.ui.security import is_loopback

    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535 or not is_loopback(host):
        raise BadInput(f"--listen {text}: not a loopback address, such as 127.0.0.1:8765")
    return host, int(port)


def _announce(url: str) -> None:
    typer.echo(f"serving at {url}, until Ctrl-C")
