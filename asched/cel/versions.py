"""Semantic versions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ALPHANUMERIC = re.compile(r"[0-9A-Za-z-]+", re.ASCII)
_MAX_UINT = 2**64 - 1
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


@dataclass(frozen=True, slots=True)
class Version:
    """A version of https://semver.org; build metadata does not count in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, text: str) -> Version:
        """Reads a complete version. Raises ValueError."""
        if not text:
            raise ValueError("Version string empty")
        parts = text.split(".", 2)
        if len(parts) != 3:
            raise ValueError("No Major.Minor.Patch elements found")
        major, minor = _number(parts[0], "major"), _number(parts[1], "minor")
        rest, has_build, build = parts[2].partition("+")
        patch, has_prerelease, prerelease = rest.partition("-")
        number = _number(patch, "patch")
        identifiers = tuple(map(_identifier, prerelease.split("."))) if has_prerelease else ()
        metadata = tuple(map(_metadata, build.split("."))) if has_build else ()
        return cls(major, minor, number, identifiers, metadata)

    @classmethod
    def parse_normalized(cls, text: str) -> Version:
        """Reads a version with a ``v``, leading zeros or missing numbers. Raises ValueError."""
        parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
        if len(parts) < 3:
            if "+" in parts[-1] or "-" in parts[-1]:
                raise ValueError("short version cannot contain PreRelease/Build meta data")
            parts += ["0"] * (3 - len(parts))
        return cls.parse(".".join(parts))

    def compare(self, other: Version) -> int:
        """-1, 0 or 1."""
        ours, theirs = self._order(), other._order()
        return (ours > theirs) - (ours < theirs)

    def _order(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        identifiers = tuple(
            (False, each, "") if isinstance(each, int) else (True, 0, each)
            for each in self.prerelease
        )
        return self.major, self.minor, self.patch, not self.prerelease, identifiers


def _without_zeros(part: str) -> str:
    if len(part.encode()) <= 1:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else "0" + stripped


def _number(text: str, name: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"Invalid character(s) found in {name} number {_quoted(text)}")
    if len(text) > 1 and text[0] == "0":
        raise ValueError(f'{name.capitalize()} number must not contain leading zeroes "{text}"')
    return _unsigned(text)


def _unsigned(text: str) -> int:
    if not text:
        raise ValueError('strconv.ParseUint: parsing "": invalid syntax')
    if len(text) > 20 or int(text) > _MAX_UINT:
        raise ValueError(f'strconv.ParseUint: parsing "{text}": value out of range')
    return int(text)


def _identifier(text: str) -> int | str:
    if not text:
        raise ValueError("Prerelease is empty")
    if text.isascii() and text.isdigit():
        if len(text) > 1 and text[0] == "0":
            raise ValueError(f'Numeric PreRelease version must not contain leading zeroes "{text}"')
        return _unsigned(text)
    if _ALPHANUMERIC.fullmatch(text) is None:
        raise ValueError(f"Invalid character(s) found in prerelease {_quoted(text)}")
    return text


def _metadata(text: str) -> str:
    if not text:
        raise ValueError("Build meta data is empty")
    if _ALPHANUMERIC.fullmatch(text) is None:
        raise ValueError(f"Invalid character(s) found in build meta data {_quoted(text)}")
    return text


def _quoted(text: str) -> str:
    """The text as Go writes it in quotes."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
