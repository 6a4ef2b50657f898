"""Runs ``asched`` commands in real processes without paying for their imports each time.

Most of the time that a start of ``asched run`` takes is spent importing. This program imports once
and forks a *runner* for each connection to its socket. The first line that a runner receives is a
JSON list: a module, to call its ``prepare``, and its environment. For each further line (the
file for output, then the arguments), it forks a process that runs the command line. It answers
with the process id, and with the exit status when the process ends (negative: minus the signal).
A runner runs one command at a time. The program ends when its standard input is closed, and
removes the folder of its socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import alembic.command  # noqa: F401
import typer.main

import asched.cli.serve  # noqa: F401  the imports that a command would make
from asched.cli.main import app
from asched.config.registry import PluginRegistry

# Built once for all commands.
COMMAND = typer.main.get_command(app)


def import_all() -> None:
    registry = PluginRegistry.discover()
    for name in registry.names:
        registry.load(name)


def prepare() -> None:
    """Commands run as they are."""


def run_command(output: str, arguments: Sequence[str]) -> None:
    """Become the command; never returns."""
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        COMMAND(list(arguments), prog_name="asched")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(connection: socket.socket) -> None:
    """Run the commands of one connection, until it is closed."""
    with connection.makefile("r") as requests, connection.makefile("w") as answers:
        module, environment = json.loads(next(requests))
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        importlib.import_module(module).prepare()
        for line in requests:
            output, *arguments = json.loads(line)
            process = os.fork()
            if not process:
                run_command(output, arguments)
            print(process, file=answers, flush=True)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            print(status, file=answers, flush=True)


def serve(server: socket.socket) -> None:
    """Fork a runner for each connection."""
    while server in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if not os.fork():
            server.close()
            with suppress(ConnectionError):  # the test has ended
                run_all(connection)
            os._exit(0)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main(path: Path) -> None:
    import_all()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the memory that it shares
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            print("ready", flush=True)
            serve(server)
    finally:
        shutil.rmtree(path.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
