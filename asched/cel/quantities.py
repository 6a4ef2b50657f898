"""Quantities as resource.Quantity of apimachinery keeps them."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    if not text or found is None or not (found[2] or found[3] or "." in text):
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
