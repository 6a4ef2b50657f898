"""Runs ``asched`` commands in real processes without paying for their imports each time.

Most of the time that a start of ``asched run`` takes is spent importing. This program imports once
and then, for each line on its standard input (a JSON list: the file for output, then the
arguments), forks a process that runs the command line. It answers with the process id, and with
the exit status when the process ends (negative: minus the signal). One command at a time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import alembic.command  # noqa: F401

import asched.cli.serve  # noqa: F401  the imports that a command would make
from asched.cli.main import app
from asched.config.registry import PluginRegistry


def import_all() -> None:
    registry = PluginRegistry.discover()
    for name in registry.names:
        registry.load(name)


def run_command(output: str, arguments: Sequence[str]) -> None:
    """Become the command; never returns."""
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        app(list(arguments), prog_name="asched")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import_all()
    print("ready", flush=True)
    for line in sys.stdin:
        output, *arguments = json.loads(line)
        process = os.fork()
        if not process:
            run_command(output, arguments)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
