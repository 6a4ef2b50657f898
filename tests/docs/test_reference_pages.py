"""Generated pages of the reference show what the code has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from asched.config.settings import AschedConfiguration
from asched.journal.codec import KINDS
from tests.docs import apiserver_page, cli_page, configuration_page, records_page


@pytest.mark.parametrize(
    ("file", "page", "module"),
    [
        (cli_page.PAGE, cli_page.page, cli_page.__name__),
        (configuration_page.PAGE, configuration_page.page, configuration_page.__name__),
        (records_page.PAGE, records_page.page, records_page.__name__),
        (apiserver_page.PAGE, apiserver_page.page, apiserver_page.__name__),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_page_is_what_the_code_has(file: Path, page: Callable[[], str], module: str) -> None:
    assert file.read_text(encoding="utf-8") == page(), f"run python -m {module}"


def test_every_record_kind_has_an_example() -> None:
    sections = records_page.page().partition("## Types of fields")[0].split("\n### ")[1:]
    without = {section.partition("\n")[0] for section in sections if "```json" not in section}
    assert {section.partition("\n")[0] for section in sections} == KINDS.keys()
    assert without == set()


def test_every_setting_is_on_the_page() -> None:
    page = configuration_page.page()
    for field in AschedConfiguration.__struct_encode_fields__:
        assert f"\n| `{field}` |" in page
