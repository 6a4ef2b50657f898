"""What a gate compares with the recorded configuration, and the processes that compute it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec

from asched.audit.timeline import time_of
from asched.config.file import ConfigFileError, read_text
from asched.gate.side import FORMAT, SideRequest, SideResult
from asched.gate.verdict import GateReport, judged
from asched.planning.conditions import Condition
from asched.planning.errors import ExecutionError, PlanningError
from asched.planning.history import History
from asched.planning.items import ConfigText
from asched.pricing.prices import Prices


class GateCandidate(NamedTuple):
    """A configuration, a virtual environment, or both."""

    name: str
    config: ConfigText | None = None
    """None for the recorded configuration."""
    environment: Path | None = None
    """The folder of a virtual environment; None for this one."""


def candidate_of(paths: Sequence[Path]) -> GateCandidate:
    """The candidate that these paths name: a configuration file, the folder of a virtual
    environment, or one of each.

    Raises PlanningError for other paths, ConfigFileError for a file that cannot be read.
    """
    config: ConfigText | None = None
    environment: Path | None = None
    for path in paths:
        if not path.is_dir():
            if config is not None:
                raise PlanningError(f"{path}: a candidate has one configuration file")
            config = ConfigText(path.name, read_text(path))
        elif not _python(path).is_file():
            raise PlanningError(f"{path}: no virtual environment: {_python(path)} is missing")
        elif environment is not None:
            raise PlanningError(f"{path}: a candidate has one virtual environment")
        else:
            environment = path.absolute()
    return GateCandidate(" with ".join(map(str, paths)), config, environment)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def gate(
    history: History,
    candidate: GateCandidate,
    thresholds: Sequence[Condition],
    *,
    days: float,
    prices: Prices | None = None,
) -> GateReport:
    """Decides the last ``days`` of a journal with the recorded configuration in this environment,
    and with the candidate, and judges the candidate.

    Raises PlanningError for an environment without a suitable asched and for a column that does not
    exist, ConfigFileError for mistakes in the candidate's configuration, ExecutionError if the
    baseline fails, JournalError.
    """
    source = history.source(days)
    request = SideRequest(
        journal=source.url,
        head=source.head,
        since_ns=max(0, source.since_ns),
        until_ns=source.until_ns,
        prices=prices,
    )
    baseline, found = anyio.run(_sides, request, candidate)
    if baseline.error:
        raise ExecutionError(f"the recorded configuration cannot be simulated: {baseline.error}")
    if found.invalid:
        raise ConfigFileError(found.invalid)
    report = judged(request, candidate.name, (baseline, found), thresholds)
    # A journal may hold fewer days than were asked for.
    begin = max(report.begin, time_of(history.first_written_ns()))
    return msgspec.structs.replace(report, begin=begin)


async def _sides(request: SideRequest, candidate: GateCandidate) -> tuple[SideResult, SideResult]:
    """The baseline and the candidate, each in a process of its own, so that CPU times compare."""
    found: dict[str, SideResult] = {}

    async def compute(name: str, environment: Path | None, asked: SideRequest) -> None:
        found[name] = await _side(environment, asked)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(compute, "baseline", None, request)
            asked = msgspec.structs.replace(request, config=candidate.config)
            group.start_soon(compute, "candidate", candidate.environment, asked)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return found["baseline"], found["candidate"]


async def _side(environment: Path | None, request: SideRequest) -> SideResult:
    python = Path(sys.executable) if environment is None else _python(environment)
    variables = dict(os.environ)
    if environment is not None:
        # The environment's own packages count, not those that this process was given.
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            variables.pop(name, None)
    command = [str(python), "-P", "-m", "asched.gate.side"]
    ended = await anyio.run_process(
        command, input=msgspec.json.encode(request), check=False, env=variables
    )
    try:
        result = msgspec.json.decode(ended.stdout, type=SideResult)
    except msgspec.MsgspecError:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1].strip() if lines else f"exit code {ended.returncode}"
        raise PlanningError(
            f"{environment or python}: its asched cannot compute a side of the gate: {reason}"
        ) from None
    if result.format != FORMAT:
        raise PlanningError(
            f"{environment or python}: asched {result.asched} there has format {result.format} of"
            f" the gate, here is {FORMAT}; run the gate with the newer one"
        )
    return result
