"""The thresholds of a gate and their file format (``docs/how-to/gate.md``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from asched.config.file import ConfigFileError, parse_yaml, read_text
from asched.config.kube_scheduler import Section
from asched.framework.runtime.strict import StrictDecoder, quote
from asched.planning.conditions import Condition
from asched.planning.errors import PlanningError

API_VERSION: Final = "asched.dev/v1"
KIND: Final = "GateThresholds"

DEFAULTS: Final = (
    Condition.parse("agreement", ">= 0.9"),
    Condition.parse("placed", ">= baseline"),
    Condition.parse("p50_wait_s", "<= 1.1 * baseline + 1"),
    Condition.parse("p95_wait_s", "<= 1.1 * baseline + 1"),
    Condition.parse("evictions", "<= 1.1 * baseline"),
    Condition.parse("cpu_s", "<= 1.25 * baseline + 1"),
)
"""The slack of one second is for baselines near zero."""


class ThresholdsDocument(Section, frozen=True):
    """Conditions by column; they replace the default ones."""

    api_version: str
    kind: str
    thresholds: dict[str, str]

    def __post_init__(self) -> None:
        if self.api_version != API_VERSION or self.kind != KIND:
            raise ValueError(
                f"expected apiVersion {API_VERSION} and kind {KIND},"
                f" got {quote(self.api_version)} and {quote(self.kind)}"
            )
        if not self.thresholds:
            raise ValueError("thresholds: expected at least one, such as placed: '>= baseline'")
        for column, text in self.thresholds.items():
            try:
                Condition.parse(column, text)
            except PlanningError as error:
                raise ValueError(f"thresholds: {error}") from None


def read_thresholds(file: Path) -> tuple[Condition, ...]:
    """The thresholds in a file. Raises ConfigFileError with a line for each mistake."""
    documents = parse_yaml(read_text(file), str(file))
    if len(documents) != 1:
        raise ConfigFileError([f"{file}: expected one document of kind {KIND}"])
    document, decoder = documents[0], StrictDecoder()
    found = None if document.problems else decoder.decode(document.value, ThresholdsDocument)
    problems = [*document.problems, *decoder.problems]
    if found is None or problems:
        raise ConfigFileError(f"{file}:{line}: {one}" for line, one in document.located(problems))
    return tuple(Condition.parse(column, text) for column, text in found.thresholds.items())


def with_requirements(base: Iterable[Condition], given: Iterable[str]) -> tuple[Condition, ...]:
    """The thresholds with those of ``given``, such as ``evictions <= baseline``, which replace
    those for the same column. Raises PlanningError for other text."""
    found = {condition.column: condition for condition in base}
    found |= {condition.column: condition for condition in map(Condition.parse_line, given)}
    return tuple(found.values())
