"""The places that name the version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).parents[2]


def disagreements(version: str, *, is_final: bool) -> list[str]:
    """What does not fit a release of ``version``. A final one needs a date in the changelog."""
    found = []
    chart = yaml.safe_load((ROOT / "helm" / "asched" / "Chart.yaml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for place, named in (
        ("helm/asched/Chart.yaml: version", chart["version"]),
        ("helm/asched/Chart.yaml: appVersion", chart["appVersion"]),
        ("CITATION.cff: version", citation["version"]),
    ):
        if str(named) != version:
            found.append(f"{place} is {named}, not {version}")
    heading = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if heading is None or heading[1] != version:
        found.append(f"CHANGELOG.md does not begin with version {version}")
    elif is_final and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        found.append(f"CHANGELOG.md: version {version} has no date but ({heading[2]})")
    return found
