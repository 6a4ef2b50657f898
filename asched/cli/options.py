"""Options that several commands share: journal, period, configuration.

This module imports only what ``--help`` needs; functions import the rest.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from asched.audit.times import TIMES, TimeTextError, parse_time_ns
from asched.cli.errors import BadInput
from asched.cli.output import HtmlOption, OutputOption, TableOrData

if TYPE_CHECKING:
    from asched.audit.history import Period
    from asched.config.file import Configuration
    from asched.config.registry import PluginRegistry
    from asched.journal.store import JournalStore
    from asched.pricing.prices import Prices
    from asched.proof.keys import JournalKeys

T = TypeVar("T")
OptionsT = TypeVar("OptionsT")

JOURNAL_ENV: Final = "ASCHED_JOURNAL"
"""Names the journal if no option does. A database URL may hold a password, and command lines are
visible to all users of a machine."""

DEFAULT_JOURNAL: Final = "asched.db"

JournalOption = Annotated[
    str,
    typer.Option(
        "--journal",
        envvar=JOURNAL_ENV,
        help="The journal: a file, or a URL (docs/reference/journal.md).",
    ),
]

SIGNING_KEY_ENV: Final = "ASCHED_SIGNING_KEY"

SigningKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--signing-key",
        metavar="FILE",
        help=f"The key of a signed journal. Default: ${SIGNING_KEY_ENV}.",
    ),
]
TrustedKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted-key",
        metavar="FILE",
        help="A public key that must have signed the journal; may be repeated. Default:"
        " $ASCHED_TRUSTED_KEY.",
    ),
]

SinceOption = Annotated[str | None, typer.Option(metavar="TIME", help=f"Start: {TIMES}.")]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help=f"End: {TIMES}.")]


PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices", metavar="FILE", help="Prices, to report costs (docs/how-to/costs.md)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class HistoryReportOptions:
    """A journal with history to decide again, and the report about it."""

    journal: JournalOption = DEFAULT_JOURNAL
    prices: PricesOption = None
    html: HtmlOption = None
    output: OutputOption = TableOrData.TABLE


def prices_of(file: Path | None) -> Prices | None:
    """The prices in a file; None without one. Raises ConfigFileError."""
    from asched.pricing.prices import read_prices

    return None if file is None else read_prices(file)


def command_group(summary: str) -> typer.Typer:
    """A group of commands with plain help: rich would double the time that ``--help`` takes."""
    return typer.Typer(
        help=summary,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def takes_options(command: Callable[[OptionsT], None]) -> Callable[..., None]:
    """A Typer command from a function of one dataclass of options.

    Typer reads options from a function's signature. The wrapper has one parameter for each field of
    the dataclass, in their order. Every field needs a default.
    """
    (parameter,) = inspect.signature(command, eval_str=True).parameters.values()
    options: Any = parameter.annotation
    hints = get_type_hints(options, include_extras=True)

    @wraps(command)
    def run(**given: Any) -> None:
        command(options(**given))

    run.__annotations__ = hints
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(options)
        ]
    )
    return run


def query_journal(
    url: str,
    query: Callable[[JournalStore], Awaitable[T]],
    *,
    read_only: bool = True,
    must_exist: bool = False,
    keys: JournalKeys | None = None,
) -> T:
    """The result of ``query`` on the journal at ``url``. Raises the errors of the query.

    ``keys``: by default those that the environment names; a journal that is read must be signed
    by one that it trusts.
    """
    import anyio

    from asched.journal.opening import open_journal, open_trusted

    async def run() -> T:
        if keys is None and read_only:
            async with open_trusted(url, journal_keys()) as trusted:
                return await query(trusted)
        opened = journal_keys() if keys is None else keys
        async with open_journal(
            url, read_only=read_only, must_exist=must_exist, keys=opened
        ) as journal:
            return await query(journal)

    log_warnings()
    return anyio.run(run)


def with_journal(command: str, journal: str) -> str:
    """The command with ``--journal`` where it would not read this journal without."""
    if journal == os.environ.get(JOURNAL_ENV, DEFAULT_JOURNAL):
        return command
    return f"{command} --journal {shlex.quote(journal)}"


def journal_keys(signing: Path | None = None, trusted: Sequence[Path] = ()) -> JournalKeys:
    """The keys in these files; by default in those that the environment names.

    Raises KeyFileError.
    """
    from asched.proof.keys import JournalKeys, PublicKey, SigningKey, trusted_keys

    signing = signing or _path_in(SIGNING_KEY_ENV)
    return JournalKeys(
        None if signing is None else SigningKey.load(signing),
        tuple(map(PublicKey.load, trusted)) or trusted_keys(),
    )


def _path_in(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def log_warnings() -> None:
    """Log warnings to stderr; structlog's default, stdout, would corrupt JSON output."""
    from asched.config.settings import LogLevel, LogSettings
    from asched.daemon.telemetry.logs import configure_logs

    configure_logs(LogSettings(level=LogLevel.WARNING))


def installed_plugins() -> PluginRegistry:
    from asched.config.registry import PluginRegistry

    return PluginRegistry.discover()


FeatureGatesOption = Annotated[
    str | None,
    typer.Option(
        metavar="A=true,B=false",
        help="Feature gates of kube-scheduler; overrides featureGates of the configuration.",
    ),
]


def read_configuration(
    file: Path | None, registry: PluginRegistry, feature_gates: str | None = None
) -> Configuration:
    """The configuration in ``file``, or the defaults for None. Raises ConfigFileError."""
    from asched.config.file import load

    return load(file, registry, given_gates(feature_gates))


def given_gates(option: str | None) -> dict[str, bool]:
    """The value of ``--feature-gates``. Raises BadInput."""
    from asched.config.feature_gates import GateFlagError, parse_flag

    try:
        return parse_flag(option or "")
    except GateFlagError as error:
        raise BadInput(f"--feature-gates: {error}") from None


def time_ns(text: str, now: datetime | None = None) -> int:
    """As :func:`asched.audit.times.parse_time_ns`, but raises BadInput."""
    try:
        return parse_time_ns(text, now)
    except TimeTextError as error:
        raise BadInput(str(error)) from None


def period(since: str | None, until: str | None) -> Period:
    """The period between two times; None leaves that side open.

    Raises BadInput for text that is not a time, or an end before the start.
    """
    from asched.audit.history import Period

    now = datetime.now(UTC)
    since_ns = 0 if since is None else time_ns(since, now)
    until_ns = None if until is None else time_ns(until, now)
    if until_ns is not None and until_ns < since_ns:
        begin = "1970" if since is None else f"--since {since}"
        raise BadInput(f"--until {until} is before {begin}")
    return Period(since_ns, until_ns)
