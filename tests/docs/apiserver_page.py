"""Writes the table of docs/reference/embedded-api-server.md from the served resources.

python -m tests.docs.apiserver_page
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.resources import ResourceRegistry

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "embedded-api-server.md"
BEGIN: Final = "<!-- resources: begin -->\n"
END: Final = "<!-- resources: end -->\n"
_VERSIONS: Final = (KubernetesVersion.V1_36, KubernetesVersion.V1_37)
_RESOURCE = tuple[str, str]


def table() -> str:
    """The kinds of each API group and version, and the option that serves them."""
    found: dict[_RESOURCE, list[KubernetesVersion]] = defaultdict(list)
    kinds: dict[str, list[str]] = defaultdict(list)
    for version in _VERSIONS:
        registry = ResourceRegistry()
        registry.serve_version(version)
        for group, number in registry.group_versions():
            for resource in registry.in_group_version(group, number):
                key = (resource.group_version, resource.kind)
                found[key].append(version)
                if resource.kind not in kinds[resource.group_version]:
                    kinds[resource.group_version].append(resource.kind)
    rows = []
    for group_version, names in sorted(kinds.items()):
        versions = found[group_version, names[0]]
        option = "" if versions == [*_VERSIONS] else f"`--kubernetes-version {versions[0].value}`"
        rows.append(f"| `{group_version}` | {', '.join(names)} | {option} |")
    return "\n".join(["| API | kinds | with |", "|---|---|---|", *rows])


def page() -> str:
    """The text of the page, with the present table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
