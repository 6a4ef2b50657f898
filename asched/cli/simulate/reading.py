"""From files to a history: scenarios, and the openb trace."""

from __future__ import annotations

from pathlib import Path

from asched.cli.errors import BadInput
from asched.daemon.config_file import ConfigFileError, read_text
from asched.daemon.config_yaml import YamlError, parse_documents
from asched.sim.virtual.exogenous import Exogenous
from asched.sim.virtual.expansion import expand
from asched.sim.virtual.openb import Table, TraceError, history_of
from asched.sim.virtual.scenario import ScenarioError, read_scenario


def scenario_history(path: Path, scheduler_name: str) -> Exogenous:
    """What happens in the scenario of a file; ``scheduler_name`` is for pods that name none.

    Raises BadInput with a line for each mistake: where it is, and what would be right.
    """
    try:
        documents = parse_documents(_text(path))
    except YamlError as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise BadInput(f"{place}: not valid YAML: {error}") from None
    if len(documents) != 1:
        raise BadInput(f"{path}: expected one document of kind Scenario, got {len(documents)}")
    document = documents[0]
    try:
        if document.problems:
            raise ScenarioError(document.problems)
        return expand(read_scenario(document.value), scheduler_name)
    except ScenarioError as error:
        placed = sorted((document.line(p.path), n, p) for n, p in enumerate(error.problems))
        raise BadInput(f"{path}:{line}: {problem}" for line, _, problem in placed) from None


def openb_history(nodes: Path, pods: Path, scheduler_name: str) -> Exogenous:
    """The trace in two CSV files. Raises BadInput."""
    try:
        return history_of(_table(nodes), _table(pods), scheduler_name)
    except TraceError as error:
        raise BadInput(str(error)) from None


def _table(path: Path) -> Table:
    return Table(str(path), _text(path).splitlines())


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except ConfigFileError as error:
        raise BadInput(error.lines) from None
