"""What a result depends on besides its input: the code of asched and of all plugins.

Source files are hashed, because a changed working copy has the version of its release.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

import asched
from asched.framework.interface import ENTRY_POINT_GROUP
from asched.framework.session_plugins import ACTION_GROUP, PLUGIN_GROUP

_OWN: Final = "asched"


class CodeVersion(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """A distribution with its code."""

    name: str
    version: str
    sha256: str
    """Of its Python source files."""

    def __str__(self) -> str:
        return f"{self.name} {self.version} (code {self.sha256[:8]})"


class Provenance(msgspec.Struct, frozen=True, rename="camel"):
    """The code of a process. Equal ones give equal results."""

    python: str
    """Major and minor version."""
    numpy: str
    code: tuple[CodeVersion, ...]
    """asched and the distributions of plugins, sorted."""

    def differences(self, other: Provenance, where: str) -> str:
        """How ``other``, the code ``where``, differs; empty if it does not.

        >>> here = Provenance("3.11", "2.1", (CodeVersion("asched", "1", "ab"),))
        >>> here.differences(Provenance("3.12", "2.1", ()), "there")
        'there has Python 3.12, here is 3.11; there has no asched'
        """
        return "; ".join(self._differences(other, where))

    def _differences(self, other: Provenance, where: str) -> Iterator[str]:
        for name, mine, theirs in (
            ("Python", self.python, other.python),
            ("numpy", self.numpy, other.numpy),
        ):
            if mine != theirs:
                yield f"{where} has {name} {theirs}, here is {mine}"
        known = {one.name: one for one in self.code}
        found = {one.name: one for one in other.code}
        for name in sorted(known.keys() | found.keys()):
            if name not in found:
                yield f"{where} has no {name}"
            elif name not in known:
                yield f"{where} has {found[name]}, which is not installed here"
            elif known[name] != found[name]:
                yield f"{where} has {found[name]}, here is {known[name]}"


@cache
def own_provenance() -> Provenance:
    """The code of this process."""
    return Provenance(
        python=".".join(platform.python_version_tuple()[:2]),
        numpy=np.__version__,
        code=tuple(sorted(_code())),
    )


def _code() -> Iterator[CodeVersion]:
    yield CodeVersion(_OWN, asched.__version__, _digest([Path(asched.__file__).parent]))
    modules: dict[tuple[str, str], set[str]] = {}
    for group in (ENTRY_POINT_GROUP, PLUGIN_GROUP, ACTION_GROUP):
        for entry_point in importlib.metadata.entry_points(group=group):
            distribution = entry_point.dist
            if distribution is None or not distribution.metadata["Name"]:
                continue
            label = distribution.metadata["Name"], distribution.version
            modules.setdefault(label, set()).add(entry_point.module.partition(".")[0])
    for (name, version), packages in modules.items():
        if name != _OWN:
            places = (place for package in sorted(packages) for place in _places(package))
            yield CodeVersion(name, version, _digest(places))


def _places(package: str) -> Iterator[Path]:
    """The folders of a top-level package, or the file of a module."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return
    if spec.submodule_search_locations:
        yield from map(Path, spec.submodule_search_locations)
    elif spec.origin is not None:
        yield Path(spec.origin)


def _digest(places: Iterable[Path]) -> str:
    found = sha256()
    for place in places:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            name = file.relative_to(place if place.is_dir() else place.parent)
            content = file.read_bytes()
            found.update(f"{name.as_posix()} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()
