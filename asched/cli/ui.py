"""``asched ui``: the browser interface and HTTP API on a journal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import typer

from asched.cli.errors import BadInput, as_command_error
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    installed_plugins,
    journal_keys,
    log_warnings,
    takes_options,
)

if TYPE_CHECKING:
    from aiohttp import web

    from asched.ui.app import Listen
    from asched.ui.journal_view import JournalView
    from asched.ui.lab.runs import LabSettings
    from asched.ui.security import Access


@dataclass(frozen=True, kw_only=True)
class UiOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    listen: str = typer.Option(
        "127.0.0.1:8080", metavar="HOST:PORT", help="Where to serve. Port 0 selects a free port."
    )
    token_file: Path | None = typer.Option(
        None, metavar="FILE", help="Require the token in this file. Needed beyond loopback."
    )
    tls_certificate: Path | None = typer.Option(
        None, metavar="FILE", help="Serve HTTPS with this certificate (PEM)."
    )
    tls_key: Path | None = typer.Option(
        None, metavar="FILE", help="Private key of the certificate (PEM)."
    )
    behind_proxy: bool = typer.Option(
        False, "--behind-proxy", help="A proxy in front of the server speaks HTTPS."
    )
    lab_workers: int = typer.Option(
        1, min=0, max=64, help="What-if comparisons at a time, each in a process. 0 for no lab."
    )
    lab_memory: int = typer.Option(
        4096, min=0, metavar="MIB", help="Memory limit of a comparison; 0 for none."
    )
    results_dir: Path | None = typer.Option(
        None,
        metavar="DIRECTORY",
        help="Where results of the what-if lab are kept. Default: until the process ends.",
    )


@takes_options
def ui(options: UiOptions) -> None:
    """Serve pages and an API that answer questions about a journal.

    Read-only, in a process of its own, on a journal that may grow meanwhile. Listens on loopback;
    another address needs a token, and TLS or a proxy that has it. Every reader sees all namespaces:
    TokenReview and SubjectAccessReview are not supported yet. Ctrl-C or SIGTERM stops it.
    """
    from asched.ui.app import ListenError

    listen, access = _listen(options), _access(options)
    if not _is_local(listen.host):
        if not access.token:
            raise BadInput(f"--listen {options.listen}: beyond loopback give --token-file FILE")
        if not access.secure:
            raise BadInput(
                f"--listen {options.listen}: beyond loopback give --tls-certificate and --tls-key,"
                " or --behind-proxy"
            )
    log_warnings()
    try:
        with _lab(options) as lab:
            anyio.run(_serve, lab, listen, access)
    except (ListenError, BaseExceptionGroup) as error:
        raise as_command_error(error, bad_input=(ListenError,)) from None


def _is_local(host: str) -> bool:
    from asched.ui.security import is_loopback

    return is_loopback(host)


def _listen(options: UiOptions) -> Listen:
    """Raises BadInput."""
    import ssl

    from asched.ui.app import Listen

    host, _, port = options.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"--listen {options.listen}: not HOST:PORT, such as 127.0.0.1:8080")
    if options.tls_certificate is None and options.tls_key is None:
        return Listen(host, int(port))
    if options.tls_certificate is None or options.tls_key is None:
        raise BadInput("--tls-certificate and --tls-key go together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"{options.tls_certificate}, {options.tls_key}"
        raise BadInput(f"{files}: not a certificate and its key: {error.strerror}") from None
    return Listen(host, int(port), context)


def _access(options: UiOptions) -> Access:
    """Raises BadInput."""
    from asched.ui.security import MIN_TOKEN_LENGTH, Access

    secure = options.tls_certificate is not None or options.behind_proxy
    if options.token_file is None:
        return Access("", secure)
    try:
        token = options.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(f"{options.token_file}: cannot be read: {reason}") from None
    if len(token) < MIN_TOKEN_LENGTH:
        raise BadInput(
            f"{options.token_file}: the token has {len(token)} characters; at least"
            f" {MIN_TOKEN_LENGTH} are needed, such as from: openssl rand -hex 32"
        )
    return Access(token, secure)


@contextmanager
def _lab(options: UiOptions) -> Iterator[LabSettings]:
    """The settings of the lab, and its folder. Raises BadInput."""
    import tempfile

    from asched.ui.lab.runs import LabSettings

    kept, memory_bytes = options.results_dir, options.lab_memory << 20
    with tempfile.TemporaryDirectory(prefix="asched-lab-") as temporary:
        folder = Path(temporary) if kept is None else kept
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--results-dir {folder}: {error.strerror or error}") from None
        yield LabSettings(
            options.journal, folder, options.lab_workers, memory_bytes, kept is not None
        )


async def _serve(lab: LabSettings, listen: Listen, access: Access) -> None:
    from asched.ui.app import serving
    from asched.ui.journal_view import check_journal, open_view

    url, keys = lab.journal_url, journal_keys()
    await check_journal(url, keys)
    async with (
        open_view(url, installed_plugins(), keys) as view,
        serving(_app(view, access, lab), listen) as address,
    ):
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            typer.echo(f"serving {view.name} at {address}, until Ctrl-C")
            async for _ in signals:
                break


def _app(view: JournalView, access: Access, lab: LabSettings) -> web.Application:
    """Raises BadInput."""
    from asched.ui.app import make_app

    try:
        return make_app(view, access, lab)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"--results-dir {lab.results_dir}: not writable: {reason}") from None
