"""Reading the configuration that a command is given."""

from __future__ import annotations

from pathlib import Path

from asched.cli.errors import BadInput
from asched.daemon.config_file import ConfigFileError, Configuration, load
from asched.framework.registry import Registry


def read_configuration(file: Path | None, registry: Registry) -> Configuration:
    """The configuration in ``file``; for None, what holds without one. Raises BadInput with a line for
    each mistake."""
    try:
        return load(file, registry)
    except ConfigFileError as error:
        raise BadInput(error.lines) from None
