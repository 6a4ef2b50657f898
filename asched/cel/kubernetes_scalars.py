"""Quantities, as resource.Quantity of apimachinery keeps them, and semantic versions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_SYNTAX = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*(?:[+-]?[0-9]*))", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,9})", re.ASCII)
_MAX_DIGITS = 18
_MAX_INT = 2**63 - 1
_MIN_INT = -(2**63)
_FORMAT_ERROR = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_SUFFIX_ERROR = "unable to parse quantity's suffix"
_NUMBER_ERROR = "unable to parse numeric part of quantity"
MAX_EXPONENT = 400


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """``value`` times ten to the power of ``scale``.

    A quantity that does not fit the small form of apimachinery is ``arbitrary``: it never
    converts to an integer, whatever its value. Kubernetes cannot compare any value for equality
    with a sum or difference on the right-hand side; those are ``is_computed``.
    """

    value: int
    scale: int = 0
    arbitrary: bool = False
    is_computed: bool = False

    def compare(self, other: Quantity) -> int:
        """-1, 0 or 1."""
        ours, theirs = _aligned(self, other)
        return (ours > theirs) - (ours < theirs)

    def as_integer(self) -> int | None:
        """The integer, if the quantity is stored as one."""
        if self.arbitrary or self.scale < 0:
            return None
        return _small_int(self.value, self.scale)

    def approximate(self) -> float:
        """The nearest float, computed as apimachinery does."""
        base = float(self.value) if abs(self.value) < 1 << 1023 else float("inf")
        return base if self.scale == 0 else base * float(f"1e{self.scale}")

    def plus(self, other: Quantity) -> Quantity:
        """The sum."""
        if not (self.arbitrary or other.arbitrary):
            small = self._small_sum(other)
            if small is not None:
                return small
        ours, theirs = _aligned(self, other)
        return Quantity(ours + theirs, min(self.scale, other.scale), arbitrary=True)

    def minus(self, other: Quantity) -> Quantity:
        """The difference."""
        # As in Go, the least 64-bit integer is its own opposite.
        is_least = other.value == _MIN_INT and not other.arbitrary
        value = other.value if is_least else -other.value
        return self.plus(Quantity(value, other.scale, other.arbitrary))

    def _small_sum(self, other: Quantity) -> Quantity | None:
        if other.value == 0:
            return self
        if self.value == 0:
            return other
        scale = min(self.scale, other.scale)
        ours = _small_int(self.value, self.scale - scale)
        theirs = _small_int(other.value, other.scale - scale)
        if ours is None or theirs is None or not _is_int64(ours + theirs):
            return None
        return Quantity(ours + theirs, scale)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __hash__(self) -> int:
        value, scale = self.value, self.scale
        while value and value % 10 == 0:
            value, scale = value // 10, scale + 1
        return hash((value, scale if value else 0))


def _aligned(left: Quantity, right: Quantity) -> tuple[int, int]:
    scale = min(left.scale, right.scale)
    return (
        left.value * 10 ** (left.scale - scale),
        right.value * 10 ** (right.scale - scale),
    )


def _small_int(value: int, scale: int) -> int | None:
    if value == 0 or (scale == 0 and _is_int64(value)):
        return value
    if scale > _MAX_DIGITS:
        return None
    scaled = value * int(10**scale)
    return scaled if abs(scaled) <= _MAX_INT else None


def _is_int64(value: int) -> bool:
    return _MIN_INT <= value <= _MAX_INT


def parse_quantity(text: str) -> Quantity:
    """Reads a quantity such as ``1.5Gi``. Raises ValueError with apimachinery's text."""
    if text == "0":
        return Quantity(0)
    found = _SYNTAX.fullmatch(text) if len(text) <= 4096 else None
    # As in Kubernetes, a number without digits is 0.
    if not text or found is None:
        raise ValueError(_FORMAT_ERROR)
    sign, whole, fraction, suffix = found[1], found[2].lstrip("0"), found[3] or "", found[4]
    scale, binary = _suffix(suffix)
    digits = len(whole or "0") + len(fraction)
    factor = -1 if sign == "-" else 1
    if binary is None:
        is_small = digits <= _MAX_DIGITS and scale - len(fraction) >= -9
        if is_small:
            return Quantity(factor * int((whole or "0") + fraction), scale - len(fraction))
    elif not fraction and 15 - len(whole or "0") - int(binary * 3 / 10) - 1 >= 0:
        return Quantity(factor * (int(whole or "0") << binary))
    return factor_quantity(factor, found[2], fraction, (scale, binary))


def factor_quantity(
    factor: int, whole: str, fraction: str, exponents: tuple[int, int | None]
) -> Quantity:
    """A quantity that does not fit 64 bits. Raises ValueError without digits."""
    if not whole and not fraction:
        raise ValueError(_NUMBER_ERROR)
    scale, binary = exponents
    value, scale = int((whole or "0") + fraction), scale - len(fraction)
    if binary is not None:
        value <<= binary
    if scale < -9:
        quotient, rest = divmod(value, 10 ** (-9 - scale))
        value, scale = quotient + (1 if rest else 0), -9
    if binary is not None and scale <= 0 and value > _MAX_INT * 10**-scale:
        value, scale = _MAX_INT, 0
    return Quantity(factor * value, scale, arbitrary=True)


def _suffix(suffix: str) -> tuple[int, int | None]:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], None
    if suffix in _BINARY:
        return 0, _BINARY[suffix]
    found = _EXPONENT.fullmatch(suffix)
    if found is None or abs(int(found[1])) > MAX_EXPONENT:
        raise ValueError(_SUFFIX_ERROR)
    return int(found[1]), None


_ALPHANUMERIC = re.compile(r"[0-9A-Za-z-]+", re.ASCII)
_MAX_UINT = 2**64 - 1
ESCAPES: Final = {
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
"""How Go writes characters in quotes."""


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
        ours, theirs = self.sort_key, other.sort_key
        return (ours > theirs) - (ours < theirs)

    @property
    def sort_key(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        """Sorts versions by precedence."""
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
    if character in ESCAPES:
        return ESCAPES[character]
    code = ord(character)
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
