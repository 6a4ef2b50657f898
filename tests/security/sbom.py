"""``make sbom``: the software bill of materials of the image, in CycloneDX 1.6.

The components are asched with its PostgreSQL extra, and whatever these need, in the versions that
are installed. Their hashes are those of constraints.txt, which every download is compared with.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[2]
CONSTRAINTS, PYPROJECT = PROJECT / "constraints.txt", PROJECT / "pyproject.toml"
ROOT, EXTRAS = "asched", frozenset({"postgres"})


class SbomError(Exception):
    """The installed packages are not those of constraints.txt; the text is one line."""


def pinned_hashes(text: str) -> dict[tuple[str, str], list[str]]:
    """SHA-256 of all files of each pinned package, by name and version."""
    found: dict[tuple[str, str], list[str]] = {}
    for block in re.split(r"\n(?=\S)", text):
        pin = re.match(r"(\S+?)==(\S+)", block)
        if pin is not None:
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
            found[canonicalize_name(pin[1]), pin[2]] = hashes
    return found


def required(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """What a package needs here, with extras."""
    for text in project_requirements() if name == ROOT else distribution(name).requires or ():
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in (*extras, "")]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def project_requirements() -> list[str]:
    """What asched needs, as pyproject.toml has it: that of an editable installation may be old."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra])]


def closure() -> dict[str, list[str]]:
    """All packages, and what each needs directly."""
    pending: list[tuple[str, frozenset[str]]] = [(ROOT, EXTRAS)]
    done: set[tuple[str, frozenset[str]]] = set()
    needs: dict[str, set[str]] = {}
    while pending:
        name, extras = package = pending.pop()
        if package in done:
            continue
        done.add(package)
        direct = list(required(name, extras))
        needs.setdefault(name, set()).update(other for other, _ in direct)
        pending += direct
    return {name: sorted(direct) for name, direct in sorted(needs.items())}


def component(name: str, hashes: dict[tuple[str, str], list[str]]) -> Component:
    """Raises :class:`SbomError` if the installed version is not pinned."""
    found = distribution(name)
    own = name == ROOT
    if not own and (name, found.version) not in hashes:
        raise SbomError(f"{name} {found.version} is installed, but not pinned: run make setup")
    return Component(
        type=ComponentType.APPLICATION if own else ComponentType.LIBRARY,
        name=name,
        version=found.version,
        bom_ref=f"{name}@{found.version}",
        purl=PackageURL("pypi", name=name, version=found.version),
        licenses=[LicenseFactory().make_from_string(text) for text in licence(found)],
        hashes=[
            HashType(alg=HashAlgorithm.SHA_256, content=digest)
            for digest in hashes.get((name, found.version), ())
        ],
    )


def licence(found: Distribution) -> list[str]:
    """The licence expression of a package, or the name in its metadata."""
    fields = [field for field in ("License-Expression", "License") if field in found.metadata]
    text = found.metadata[fields[0]] if fields else ""
    first = text.strip().split("\n")[0][:100]
    return [first] if first else []


def bill_of_materials() -> Bom:
    hashes = pinned_hashes(CONSTRAINTS.read_text())
    needs = closure()
    components = {name: component(name, hashes) for name in needs}
    bom = Bom()
    bom.metadata.component = components[ROOT]
    for name, found in components.items():
        if name != ROOT:
            bom.components.add(found)
        bom.register_dependency(found, [components[other] for other in needs[name]])
    return bom


def main() -> None:
    """Write the bill of materials to the file that the argument names."""
    target = Path(sys.argv[1])
    try:
        bom = bill_of_materials()
    except SbomError as error:
        sys.exit(f"sbom: {error}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    print(f"{target}: {len(bom.components)} components")


if __name__ == "__main__":
    main()
