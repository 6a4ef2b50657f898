"""Parses ``asched`` command lines from pages and files with the real parser."""

from __future__ import annotations

import shlex
from typing import Any

import typer
from typer.core import TyperGroup

from asched.cli.main import app


def parsed(line: str) -> dict[str, Any]:
    """The parameters of the command line ``asched ...`` by their names in the code. Runs nothing.

    Raises typer's usage errors, and KeyError for an unknown command.
    """
    program, name, *arguments = shlex.split(line)
    assert program.rpartition("/")[2] == "asched", line
    command: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    while isinstance(command, TyperGroup):
        name, *arguments = arguments
        command = command.commands[name]
    params: dict[str, Any] = command.make_context(name, arguments).params
    return params
