"""``asched ui``: the browser interface and HTTP API on a journal."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import typer

from asched.cli.apiserver import stop_at_end_of_input
from asched.cli.errors import BadInput, as_command_error
from asched.cli.options import (
    DEFAULT_JOURNAL,
    JournalOption,
    PricesOption,
    installed_plugins,
    journal_keys,
    log_warnings,
    prices_of,
    takes_options,
)

if TYPE_CHECKING:
    from aiohttp import web

    from asched.kube.reviews import ApiReviewer, ReviewedUser
    from asched.pricing.prices import Prices
    from asched.ui.app import Listen
    from asched.ui.journal_view import JournalView
    from asched.ui.lab.runs import LabSettings
    from asched.ui.security import Access, AccessControl

_REVIEW_QPS: Final = 50.0


class Authentication(Enum):
    """How readers show who they are."""

    TOKEN_FILE = "token-file"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, kw_only=True)
class UiOptions:
    journal: JournalOption = DEFAULT_JOURNAL
    listen: str = typer.Option(
        "127.0.0.1:8080", metavar="HOST:PORT", help="Where to serve. Port 0 selects a free port."
    )
    token_file: Path | None = typer.Option(
        None, metavar="FILE", help="Require the token in this file. Needed beyond loopback."
    )
    authentication: Authentication = typer.Option(
        Authentication.TOKEN_FILE,
        help="kubernetes: readers send tokens of the cluster, which the API server reviews, and see"
        " the namespaces that they may list pods in.",
    )
    token_audience: list[str] = typer.Option(
        [],
        metavar="AUDIENCE",
        help="With --authentication kubernetes: accept only tokens for this audience. Repeatable."
        " Default: those of the API server.",
    )
    kubeconfig: Path | None = typer.Option(
        None,
        help="With --authentication kubernetes: of the cluster that reviews. Default: as asched"
        " run.",
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
    index_dir: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Keep the index here between starts. Default: asched below the user's cache folder.",
    )
    verify_all: bool = typer.Option(
        False,
        "--verify-all",
        help="Verify all records at the start, not only those since the last verification.",
    )
    until_stdin_closes: bool = typer.Option(
        False, "--until-stdin-closes", help="Stop also at the end of standard input."
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
    prices: PricesOption = None


@takes_options
def ui(options: UiOptions) -> None:
    """Serve pages and an API that answer questions about a journal.

    Read-only, in a process of its own, on a journal that may grow meanwhile. Listens on loopback;
    another address needs a token or --authentication kubernetes, and TLS or a proxy that has it.
    With a token file every reader sees all namespaces. Ctrl-C or SIGTERM stops it.
    """
    from asched.ui.app import ListenError

    listen, access = _listen(options), _access(options)
    reviewed = options.authentication is Authentication.KUBERNETES
    if reviewed and options.token_file is not None:
        raise BadInput("--token-file and --authentication kubernetes exclude each other")
    if not reviewed and (options.token_audience or options.kubeconfig):
        raise BadInput("--token-audience and --kubeconfig need --authentication kubernetes")
    if not _is_local(listen.host):
        if not access.token and not reviewed:
            raise BadInput(
                f"--listen {options.listen}: beyond loopback give --token-file FILE or"
                " --authentication kubernetes"
            )
        if not access.secure:
            raise BadInput(
                f"--listen {options.listen}: beyond loopback give --tls-certificate and --tls-key,"
                " or --behind-proxy"
            )
    prices = prices_of(options.prices)
    log_warnings()
    try:
        with _lab(options) as lab:
            anyio.run(_serve, options, prices, lab, listen, access)
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


def index_folder(chosen: Path | None) -> Path:
    """``--index-dir``, or ``asched`` in the cache folder of the user (XDG_CACHE_HOME)."""
    if chosen is not None:
        return chosen
    cache = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
    return folder / "asched"


@asynccontextmanager
async def _access_control(options: UiOptions, access: Access) -> AsyncIterator[AccessControl]:
    """Who may read. Raises KubeConfigError."""
    if options.authentication is Authentication.TOKEN_FILE:
        yield access
        return
    from asched.kube.connection import connect
    from asched.kube.reviews import ApiReviewer
    from asched.ui.cluster_access import ClusterAccess

    async with connect(options.kubeconfig, qps=_REVIEW_QPS) as client:
        reviewer = ApiReviewer(client, tuple(options.token_audience))
        yield ClusterAccess(UiReviewer(reviewer), access.secure)


class UiReviewer:
    """The API server's reviews, as the browser interface asks for them."""

    def __init__(self, reviewer: ApiReviewer) -> None:
        self._reviewer = reviewer

    async def authenticate(self, token: str) -> ReviewedUser | None:
        from asched.kube.reviews import ReviewError
        from asched.ui.errors import ReviewUnavailableError

        try:
            return await self._reviewer.authenticate(token)
        except ReviewError as error:
            raise ReviewUnavailableError(str(error)) from None

    async def may_list(self, user: ReviewedUser, resource: str, namespace: str) -> bool:
        from asched.kube.reviews import AccessQuestion, ReviewError
        from asched.ui.errors import ReviewUnavailableError

        try:
            return await self._reviewer.allows(user, AccessQuestion("list", resource, namespace))
        except ReviewError as error:
            raise ReviewUnavailableError(str(error)) from None


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


async def _serve(
    options: UiOptions,
    prices: Prices | None,
    lab: LabSettings,
    listen: Listen,
    access: Access,
) -> None:
    from asched.ui.app import serving
    from asched.ui.follower import FollowerSettings
    from asched.ui.journal_view import check_journal, open_view
    from asched.ui.memory import limit_heap

    limit_heap()
    url, keys = lab.journal_url, journal_keys()
    folder = index_folder(options.index_dir)
    settings = FollowerSettings(installed_plugins(), folder, options.verify_all, prices)
    await check_journal(url, keys)
    async with (
        _access_control(options, access) as control,
        open_view(url, settings, keys) as view,
        serving(_app(view, control, lab), listen) as address,
        anyio.create_task_group() as tasks,
    ):
        if options.until_stdin_closes:
            tasks.start_soon(stop_at_end_of_input, tasks.cancel_scope)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            typer.echo(f"serving {view.name} at {address}, until Ctrl-C")
            async for _ in signals:
                tasks.cancel_scope.cancel()


def _app(view: JournalView, access: AccessControl, lab: LabSettings) -> web.Application:
    """Raises BadInput."""
    from asched.ui.app import make_app

    try:
        return make_app(view, access, lab)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"--results-dir {lab.results_dir}: not writable: {reason}") from None
