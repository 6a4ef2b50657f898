"""Everything that names the version names the same one."""

from __future__ import annotations

import tomllib

from asched import __version__
from tests.release.versions import ROOT, disagreements

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_all_places_name_the_version() -> None:
    assert __version__ == VERSION
    assert disagreements(VERSION, is_final=False) == []


def test_other_versions_and_undated_changelogs_are_found() -> None:
    found = disagreements("9.9.9", is_final=False)
    assert [line.partition(" ")[0] for line in found] == [
        "helm/asched/Chart.yaml:",
        "helm/asched/Chart.yaml:",
        "CITATION.cff:",
        "CHANGELOG.md",
    ]
