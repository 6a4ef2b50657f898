"""What to compare: the form that a user fills in, and the request that a worker executes."""

from __future__ import annotations

import hashlib
import re
import shlex
from enum import StrEnum
from typing import Final

import msgspec

from asched import __version__
from asched.audit.lookup import AuditError
from asched.audit.timeline import time_of
from asched.audit.times import TimeTextError, parse_time_ns
from asched.audit.whatif.candidate import (
    BASELINE,
    CandidateConfig,
    WhatIfSettings,
    candidate_config,
    parse_changes,
)
from asched.audit.whatif.node_changes import parse_node_changes
from asched.audit.whatif.scenarios import parse_scenario
from asched.config.file import ConfigFileError, Configuration, parse
from asched.config.registry import PluginRegistry
from asched.pricing.prices import Prices
from asched.ui.errors import RequestError
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader

MAX_CONFIGURATION: Final = 64 * 1024
MAX_SCENARIO: Final = 128 * 1024
MAX_LINE: Final = 2_000
MAX_PROBLEMS: Final = 50
CONFIGURATION: Final = "configuration"
SCENARIO: Final = "scenario"
_EDITED: Final = "edited configuration"
_RECORD: Final = re.compile(r"[0-9]{1,18}")
_PLACE: Final = re.compile(
    rf"(?:{CONFIGURATION}|{SCENARIO}):(?:(?P<line>\d+):)? ?(?P<text>.*)", re.S
)


class LabSource(StrEnum):
    """Where the workload comes from."""

    HISTORY = "history"
    SCENARIO = "scenario"


class LabForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What to compare, as a user writes it. Empty texts are the defaults."""

    source: LabSource = LabSource.HISTORY
    begin: str = msgspec.field(default="", name="from")
    """A time, a duration before now, or the number of a record. Default: that of the journal."""
    end: str = msgspec.field(default="", name="to")
    configuration: str = ""
    """A configuration file. Default: the recorded configuration, or the default one for a
    scenario."""
    plugins: str = ""
    """Changes as for ``asched diff --plugins``."""
    add_nodes: str = ""
    """Changes as for ``asched diff --add-nodes``."""
    remove_nodes: str = ""
    scenario: str = ""
    """A scenario as for ``asched simulate``."""


class LabRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What to compare, independent of the time of the question."""

    source: LabSource
    journal: str
    """The name of the journal; empty for a scenario."""
    head_seq: int
    """The journal's head when the run was started."""
    head_hash: str
    since: str
    """RFC 3339; empty for the beginning."""
    until: str
    configuration: str
    plugins: str
    add_nodes: str
    remove_nodes: str
    scenario: str
    prices: Prices | None = None
    """Those of the server when the run was started; a result has no costs without them."""
    version: str = __version__

    @property
    def id(self) -> str:
        """The same for the same question about the same journal with the same prices."""
        encoded = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(encoded).hexdigest()[:24]

    @property
    def settings(self) -> WhatIfSettings:
        return WhatIfSettings(
            name=_EDITED if self.configuration.strip() else "",
            plugins=self.plugins,
            add_nodes=self.add_nodes,
            remove_nodes=self.remove_nodes,
        )

    @property
    def changes(self) -> str:
        """The candidate in one line."""
        settings = self.settings
        nodes = str(parse_node_changes(self.add_nodes, self.remove_nodes))
        changed = [text for text in (settings.plugins, nodes) if text]
        base = settings.name or BASELINE
        return f"{base} with {', '.join(changed)}" if changed else base

    @property
    def command(self) -> str:
        """The same comparison in a terminal. ``new.yaml``, ``scenario.yaml`` and ``prices.yaml``
        are the texts of this request."""
        words = ["asched", "diff"]
        options = {
            "--journal": self.journal,
            "--config": "new.yaml" if self.configuration else "",
            "--plugins": self.plugins,
            "--add-nodes": self.add_nodes,
            "--remove-nodes": self.remove_nodes,
            "--since": self.since,
            "--until": self.until,
            "--prices": "prices.yaml" if self.prices else "",
        }
        if self.source is LabSource.SCENARIO:
            words = ["asched", "simulate", "scenario.yaml"]
            options = {name: options[name] for name in ("--config", "--prices")}
        given = [word for name, value in options.items() if value for word in (name, value)]
        return shlex.join([*words, *given])

    @property
    def form(self) -> LabForm:
        """The form that gives this request."""
        return LabForm(
            source=self.source,
            begin=self.since,
            end=self.until,
            configuration=self.configuration,
            plugins=self.plugins,
            add_nodes=self.add_nodes,
            remove_nodes=self.remove_nodes,
            scenario=self.scenario,
        )


class LabProblem(msgspec.Struct, frozen=True, rename="camel"):
    """What is wrong with a field of the form."""

    field: str
    line: int
    """In the text of the field; 0 if it is about no line."""
    message: str


class LabCheck(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a validation."""

    problems: tuple[LabProblem, ...]
    warnings: tuple[str, ...] = ()


def check_form(form: LabForm, registry: PluginRegistry) -> LabCheck:
    """All problems of the form that do not depend on the journal."""
    problems = [*_too_long(form)]
    warnings: tuple[str, ...] = ()
    if problems:
        return LabCheck(tuple(problems))
    try:
        configuration = read_configuration(form.configuration, registry)
        warnings = () if configuration is None else configuration.warnings
    except ConfigFileError as error:
        problems += _problems_of(CONFIGURATION, error)
    if form.source is LabSource.SCENARIO:
        try:
            parse_scenario(form.scenario, SCENARIO)
        except ConfigFileError as error:
            problems += _problems_of(SCENARIO, error)
    for field, check in (
        ("plugins", lambda: parse_changes(form.plugins) if form.plugins else None),
        ("addNodes", lambda: parse_node_changes(form.add_nodes, "")),
        ("from", lambda: _time_ns(form.begin)),
        ("to", lambda: _time_ns(form.end)),
    ):
        try:
            check()
        except (AuditError, TimeTextError, RequestError) as error:
            problems.append(LabProblem(field, 0, str(error)))
    return LabCheck(tuple(problems[:MAX_PROBLEMS]), warnings)


def _too_long(form: LabForm) -> list[LabProblem]:
    limits = {
        "configuration": (form.configuration, MAX_CONFIGURATION),
        "scenario": (form.scenario, MAX_SCENARIO),
        "plugins": (form.plugins, MAX_LINE),
        "addNodes": (form.add_nodes, MAX_LINE),
        "removeNodes": (form.remove_nodes, MAX_LINE),
        "from": (form.begin, MAX_LINE),
        "to": (form.end, MAX_LINE),
    }
    return [
        LabProblem(field, 0, f"longer than {limit:,} characters")
        for field, (text, limit) in limits.items()
        if len(text) > limit
    ]


def _problems_of(field: str, error: ConfigFileError) -> list[LabProblem]:
    found = []
    for line in error.lines:
        match = _PLACE.fullmatch(line)
        number = int(match["line"] or 0) if match is not None else 0
        text = match["text"] if match is not None else line
        found.append(LabProblem(field, number, text.strip()))
    return found


def read_configuration(text: str, registry: PluginRegistry) -> Configuration | None:
    """The configuration; None for an empty text. Raises ConfigFileError.

    It names no files: it comes from a browser.
    """
    if not text.strip():
        return None
    return parse(text, CONFIGURATION, registry, reads_files=False)


def candidate_of(request: LabRequest, registry: PluginRegistry) -> CandidateConfig:
    """What to compare with. Raises ConfigFileError, AuditError."""
    configuration = read_configuration(request.configuration, registry)
    return candidate_config(request.settings, configuration, registry)


def _time_ns(text: str) -> int | None:
    """The time; None for a record or an empty text. Raises TimeTextError."""
    if not text.strip() or _RECORD.fullmatch(text.strip()):
        return None
    return parse_time_ns(text.strip())


async def resolve(form: LabForm, reader: JournalReader, journal: str) -> LabRequest:
    """The request of a valid form about the journal as it is now, with the prices of the reader.

    Runs in the thread of the journal. Raises :class:`RequestError`, AuditError, JournalError.
    """
    if form.source is LabSource.SCENARIO:
        return _request(form, ("", 0, ""), ("", ""), reader.prices)
    head = await reader.store.head()
    since_ns = await _begin_ns(form.begin, reader)
    until_ns = await _end_ns(form.end, reader)
    if since_ns is not None and since_ns > until_ns:
        raise RequestError("to: before from")
    since = "" if since_ns is None else _text(since_ns // 1000 * 1000)
    # Rounded up, so that the last record belongs to the period.
    until = _text(-(-until_ns // 1000) * 1000)
    return _request(form, (journal, head.seq, str(head.hash)), (since, until), reader.prices)


def _request(
    form: LabForm,
    journal: tuple[str, int, str],
    period: tuple[str, str],
    prices: Prices | None,
) -> LabRequest:
    return LabRequest(
        source=form.source,
        journal=journal[0],
        head_seq=journal[1],
        head_hash=journal[2],
        since=period[0],
        until=period[1],
        configuration=form.configuration if form.configuration.strip() else "",
        plugins=form.plugins.strip(),
        add_nodes=form.add_nodes.strip() if form.source is LabSource.HISTORY else "",
        remove_nodes=form.remove_nodes.strip() if form.source is LabSource.HISTORY else "",
        scenario=form.scenario if form.source is LabSource.SCENARIO else "",
        prices=prices,
    )


def _text(ns: int) -> str:
    return time_of(ns).isoformat().replace("+00:00", "Z")


async def _begin_ns(text: str, reader: JournalReader) -> int | None:
    if not text.strip():
        return None
    at_ns = _time_ns(text)
    return at_ns if at_ns is not None else await _written_ns(text, reader)


async def _end_ns(text: str, reader: JournalReader) -> int:
    at_ns = _time_ns(text)
    if at_ns is not None:
        return at_ns
    return await _written_ns(text, reader)


async def _written_ns(text: str, reader: JournalReader) -> int:
    """When the record was written; the newest one for an empty text. Raises AuditError."""
    seq = await reader.seq_of(Moment(int(text) if text.strip() else None))
    async for stored in reader.store.read(seq - 1, seq):
        return stored.written_at_ns
    raise AuditError(f"record {seq} cannot be read")


def parsed_period_ns(request: LabRequest) -> tuple[int, int | None]:
    """The period in nanoseconds, as ``asched diff`` reads the same texts."""
    since_ns = parse_time_ns(request.since) if request.since else 0
    return since_ns, parse_time_ns(request.until) if request.until else None
