"""docs/reference/batch-corrections.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asched.batch.corrections import Correction
from tests.conformance.batch_modes import compare_modes, table
from tests.conformance.runner import topics_in

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "batch-corrections.md"


def test_page_describes_every_correction() -> None:
    described = re.findall(r"^- \*\*(.+?)\*\*: \w", PAGE.read_text(), re.MULTILINE)
    names = [correction.name.capitalize().replace("_", " ") for correction in Correction]
    assert described == names


@pytest.mark.shared
def test_page_has_numbers_of_recorded_clusters(shared_dir: Path) -> None:
    topics = topics_in(shared_dir / "golden" / "batch")
    assert "\n".join(table([*compare_modes(topics)])) in PAGE.read_text()
