"""Runs recorded documents and counts agreements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from asched.batch.registry import SessionRegistry
from asched.config.registry import PluginRegistry
from asched.framework.runtime.strict import ConfigurationError
from asched.model.resources import DecodeError
from tests.conformance.answers import Laboratory
from tests.conformance.batch_documents import is_batch_document
from tests.conformance.batch_runner import session_differences
from tests.conformance.cel_documents import expression_differences, is_cel_document
from tests.conformance.differences import differences
from tests.conformance.documents import Document, DocumentError
from tests.conformance.group_answers import group_differences
from tests.conformance.group_documents import is_group_document
from tests.conformance.hint_documents import hint_differences, is_hint_document


class CaseResult(NamedTuple):
    """One case, and how the answer differs."""

    topic: str
    place: str
    """Document and number of the case."""
    differences: tuple[str, ...]
    rule: str = ""
    """The rule that excludes the case from the comparison; empty if it is compared in full."""

    @property
    def passed(self) -> bool:
        return not self.differences


def topics_in(directory: Path) -> dict[str, list[Path]]:
    """The documents by topic: their folder, or ``.`` for the directory itself."""
    found: dict[str, list[Path]] = {}
    for path in sorted(directory.rglob("*.json"), key=_in_number_order):
        found.setdefault(str(path.parent.relative_to(directory)), []).append(path)
    return found


def _in_number_order(path: Path) -> tuple[str, int, str]:
    return str(path.parent), len(path.stem), path.stem


def results(topic: str, paths: Sequence[Path], registry: PluginRegistry) -> Iterator[CaseResult]:
    """The result of every case or session. An unusable document is one failed case."""
    for path in paths:
        try:
            if is_batch_document(path):
                for place, lines in session_differences(path, SessionRegistry.discover()):
                    yield CaseResult(topic, place, tuple(lines))
                continue
            if is_cel_document(path):
                for place, lines in expression_differences(path):
                    yield CaseResult(topic, place, tuple(lines))
                continue
            if is_hint_document(path):
                for number, lines in enumerate(hint_differences(path, registry)):
                    yield CaseResult(topic, f"{path.stem} case {number}", tuple(lines))
                continue
            if is_group_document(path):
                for place, lines, rule in group_differences(path, registry):
                    yield CaseResult(topic, place, tuple(lines), rule)
                continue
            document = Document(path)
            laboratory = Laboratory(document, registry)
            for number, (case, answer) in enumerate(laboratory.answers()):
                place = f"{path.stem} case {number} ({case.pod.key})"
                found = differences(case.pod, case.expect, answer)
                yield CaseResult(topic, place, tuple(found))
        except (DocumentError, ConfigurationError, DecodeError) as error:
            yield CaseResult(topic, path.stem, (f"cannot be used: {error}",))
