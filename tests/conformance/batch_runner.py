"""Runs recorded batch sessions and reports differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from asched.batch.registry import SessionRegistry
from tests.conformance.batch_answers import BatchLaboratory
from tests.conformance.batch_differences import batch_differences
from tests.conformance.batch_documents import BatchDocument


def session_differences(path: Path, registry: SessionRegistry) -> Iterator[tuple[str, list[str]]]:
    """(Name, differences) of each session of a document. Raises DocumentError and DecodeError."""
    document = BatchDocument(path)
    laboratory = BatchLaboratory(document, registry)
    sessions = zip(document.expected, laboratory.answers(), strict=True)
    for number, (expected, answer) in enumerate(sessions, 1):
        yield f"{path.stem} session {number}", batch_differences(expected, answer)
