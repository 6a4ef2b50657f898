"""Command lines of ``asched`` that pages and files show, read by the real parser."""

from __future__ import annotations

import importlib
import shlex
from typing import Any

import typer
from typer.core import TyperGroup

from asched.cli.main import COMMANDS


def parsed(line: str) -> dict[str, Any]:
    """The parameters of the command line ``asched ...`` by their names in the code. Nothing is run.

    Raises typer's usage errors, and KeyError where there is no such command.
    """
    program, name, *arguments = shlex.split(line)
    assert program.rpartition("/")[2] == "asched", line
    command: Any = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
    while isinstance(command, TyperGroup):
        name, *arguments = arguments
        command = command.commands[name]
    params: dict[str, Any] = command.make_context(name, arguments).params
    return params
