"""The unit file, read as systemd reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
UNIT = FOLDER / "asched.service"


def directives(path: Path = UNIT) -> Mapping[str, Sequence[str]]:
    """Values by ``Section.Name``, in the order of the file: many directives may be given again."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(f"{section}.{name}", []).append(value)
    return found


def one(name: str) -> str:
    """The value of a directive that is given once."""
    (value,) = directives()[name]
    return value


def seconds(text: str) -> float:
    """A time span of one unit."""
    for unit, factor in (("min", 60), ("s", 1)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(f"{text!r} has no unit that is known here")
