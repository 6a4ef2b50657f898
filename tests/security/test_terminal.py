"""Hostile names and messages are escaped on terminals and in pages."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from asched.audit.whatif.report import TEMPLATES
from asched.cli.main import app
from asched.cli.output import print_json, print_table
from asched.config.settings import LogFormat, LogSettings
from asched.daemon.process import EscapingStream, escape_control, unescaped
from asched.daemon.telemetry.logs import configure_logs
from tests.daemon.world import world
from tests.extenders.service import names_of, serving

HOSTILE = "\x1b[2J\x1b]0;owned\x07\rgood\x9b31m\u202etxt"
MARKUP = "[bold red]x[/bold red][link=file:///etc/passwd]y[/link] <script>alert('&')</script>"


def obeys(text: str) -> bool:
    """Whether a terminal would do something else with it than show it or begin a line."""
    return any(
        (ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 or c in "\u202e\u2066\u200f"
        for c in text
    )


def test_control_characters_are_escaped() -> None:
    assert escape_control("a\x1b[2Jb\tc\n") == "a\\u001b[2Jb\tc\n"
    assert escape_control("\u202eabc\r") == "\\u202eabc\\u000d"
    assert escape_control("größe 東京 🙂 [bold]") == "größe 東京 🙂 [bold]"


@given(st.text())
def test_escaped_text_has_no_control_characters(text: str) -> None:
    assert not obeys(escape_control(text))
    assert escape_control(escape_control(text)) == escape_control(text)


def test_table_prints_markup_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [(HOSTILE,), (MARKUP,)], title=MARKUP + HOSTILE)
    shown = capsys.readouterr().out
    assert not obeys(shown)
    assert "\\u001b[2J" in shown
    assert shown.count("[bold red]x[/bold red][link=file:///etc/passwd]y[/link]") == 2


def test_rich_output_is_not_escaped() -> None:
    below = io.StringIO()
    stream = EscapingStream(below)
    console = Console(file=cast(io.StringIO, unescaped(cast(io.StringIO, stream))),
                      force_terminal=True, color_system="standard")  # fmt: skip
    console.print("text", style="bold")
    stream.write("\x1b[1m")
    assert below.getvalue() == "\x1b[1mtext\x1b[0m\n\\u001b[1m"


@pytest.mark.parametrize("command", [["history", HOSTILE], ["explain", HOSTILE]])
def test_errors_of_commands_are_escaped(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--journal", str(tmp_path / "none.db")])
    assert result.exit_code == 2
    assert result.output
    assert not obeys(result.output)


async def test_message_of_hostile_object_is_escaped(tmp_path: Path) -> None:
    """A plugin's words, or an extender's, come from the journal: the whole way from there."""
    async with world(tmp_path, nodes=1) as w, serving() as service:
        service.answer(
            "filter",
            lambda question: {
                "NodeNames": [],
                "FailedNodes": dict.fromkeys(names_of(question), HOSTILE + MARKUP),
            },
        )  # fmt: skip
        async with w.daemon(service.config(filterVerb="filter")):
            w.add_pod("p")
            await w.until(lambda: bool(w.message("p")))
    arguments = ["history", "default/p", "--journal", str(w.journal)]
    result = await anyio.to_thread.run_sync(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0
    shown = result.output
    assert "\\u001b[2J" in shown
    assert not obeys(shown)


def test_console_log_escapes_values(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        for format_ in (LogFormat.CONSOLE, LogFormat.JSON):
            configure_logs(LogSettings(format=format_))
            structlog.get_logger().warning("refused", error=HOSTILE)
    finally:
        structlog.reset_defaults()
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 2
    assert not obeys(shown)


# -- the page of asched diff --------------------------------------------------------------------


def test_html_page_escapes_names() -> None:
    hostile = "\"><img src=x onerror=alert(1)>'&"
    cell = TEMPLATES.from_string('<td title="{{ text }}">{{ text }}</td>')
    page = cell.render(text=hostile)
    assert "<img" not in page
    assert page.count("&lt;img") == 2
    assert "'" not in page.replace("&#39;", "")


def test_escaped_json_is_equal_data(monkeypatch: pytest.MonkeyPatch) -> None:
    below = io.StringIO()
    monkeypatch.setattr(sys, "stdout", EscapingStream(below))
    print_json({"message": HOSTILE})
    assert not obeys(below.getvalue())
    assert msgspec.json.decode(below.getvalue()) == {"message": HOSTILE}
