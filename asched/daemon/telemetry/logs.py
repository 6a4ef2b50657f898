"""Logs go to stderr, one event a line: readable on a terminal, JSON elsewhere.

Text from elsewhere, on its way to a terminal.

Names, labels and messages come from pods' authors, API servers and plugins. A terminal obeys control
characters: it would clear the screen, hide a line, change a title. They are shown instead.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Final, TextIO

import structlog

from asched.config.settings import LogFormat, LogSettings

_OBEYED: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"  # direction, other ends of lines
)


def visible(text: str) -> str:
    """``text`` with what a terminal would obey written as JSON writes it, ``\\u001b``: so JSON stays the
    same data."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class VisibleStream:
    """A text stream that makes visible what is written to it. All else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """Where rich writes its own control characters to; what it prints has been made visible."""

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def own_stream(stream: TextIO) -> TextIO:
    """The stream below, for what writes control characters of its own and nobody else's."""
    below: TextIO = getattr(stream, "rich_proxied_file", stream)
    return below


_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(settings: LogSettings) -> None:
    """Set up structlog and the standard library's logging alike."""
    console = settings.format is LogFormat.CONSOLE or (
        settings.format is LogFormat.AUTO and sys.stderr.isatty()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if console:
        shared += [_visible_values, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    else:
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    level = _LEVELS[settings.level.value]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(own_stream(sys.stderr)),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(message)s"
    )


def _visible_values(
    _: Any, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """JSON writes control characters as what they are; for a terminal it is done here."""
    return {
        key: visible(value) if isinstance(value, str) else value for key, value in event.items()
    }
