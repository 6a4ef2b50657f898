"""Quantities compared with exact fractions, over the whole grammar."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asched.model.quantity import (
    MAX_INT64,
    MAX_LENGTH,
    MIN_INT64,
    QuantityError,
    milli_value,
    thousandths,
    value,
)

SUFFIXES = {
    "": Fraction(1),
    **{s: Fraction(1000) ** p for p, s in enumerate(("n", "u", "m"), -3)},
    **{s: Fraction(1000) ** p for p, s in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{s: Fraction(1024) ** p for p, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
exponents = st.builds(
    lambda letter, sign, power: (f"{letter}{sign}{power}", Fraction(10) ** int(f"{sign}{power}")),
    st.sampled_from("eE"),
    st.sampled_from(("", "+", "-")),
    st.integers(0, 40),
)
suffixes = st.sampled_from(sorted(SUFFIXES.items())) | exponents
digits = st.text("0123456789", max_size=20)


@st.composite
def quantities(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A text of the grammar (``5``, ``5.``, ``.5``, ``5.5``, signed) with its value."""
    whole, fraction = draw(digits), draw(st.none() | digits)
    if not whole and not fraction:
        whole = "0"
    sign = draw(st.sampled_from(("", "+", "-")))
    suffix, scale = draw(suffixes)
    number = whole if fraction is None else f"{whole}.{fraction}"
    mantissa = Fraction(int((whole + (fraction or "")) or "0"), 10 ** len(fraction or ""))
    return sign + number + suffix, (-mantissa if sign == "-" else mantissa) * scale


def rounded_away(exact: Fraction) -> int:
    magnitude = -(-abs(exact.numerator) // exact.denominator)
    return magnitude if exact >= 0 else -magnitude


def held(number: int) -> int:
    return max(MIN_INT64, min(MAX_INT64, number))


@given(quantities())
@example(("8Ei", Fraction(2**63)))
@example((".5", Fraction(1, 2)))
@example(("5.", Fraction(5)))
@example(("1E", Fraction(10**18)))
@example(("1E3", Fraction(1000)))
@example(("1e-3", Fraction(1, 1000)))
@example(("-0.5", Fraction(-1, 2)))
@example(("1n", Fraction(1, 10**9)))
def test_value_equals_exact_fraction_rounded_up(drawn: tuple[str, Fraction]) -> None:
    text, exact = drawn
    assert value(text) == held(rounded_away(exact))
    assert thousandths(text) == rounded_away(exact * 1000)
    assert milli_value(text) == held(rounded_away(exact * 1000))


@pytest.mark.parametrize(
    ("quantity", "whole", "milli"),
    [
        ("100m", 1, 100),
        ("0.1", 1, 100),
        (0.1, 1, 100),
        (2, 2, 2000),
        ("1500u", 1, 2),
        ("+2", 2, 2000),
        ("1Ki", 1024, 1024000),
        ("1.5Gi", 1610612736, 1610612736000),
        ("128974848000m", 128974848, 128974848000),
        ("129M", 129000000, 129000000000),
        ("8Ei", MAX_INT64, MAX_INT64),
        ("9223372036854775807", MAX_INT64, MAX_INT64),
        ("-9223372036854775809", MIN_INT64, MIN_INT64),
        ("1e400", MAX_INT64, MAX_INT64),
        ("1e-400", 1, 1),
        ("0e400", 0, 0),
        (1e22, MAX_INT64, MAX_INT64),
        (" 1 ", 1, 1000),
        ("0." + "0" * 900 + "1e901", 1, 1000),
        ("1e99999999999999999999", MAX_INT64, MAX_INT64),
    ],
)
def test_known_quantities(quantity: str | int | float, whole: int, milli: int) -> None:
    assert (value(quantity), milli_value(quantity)) == (whole, milli)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "+", "-", "+-1", "1..2", "1.2.3", "m", "Ki", "1K", "1ki", "1mi", "1e", "1e+",
        "1e3k", "1Kib", "1 Gi", "0x10", "1,5", "NaN", "Inf", "1_000", "\u0661", "1m\n2",
        "9" * (MAX_LENGTH + 1),
    ],
)  # fmt: skip
def test_invalid_quantity_is_rejected(text: str) -> None:
    for read in (value, milli_value):
        with pytest.raises(QuantityError, match="is not a quantity"):
            read(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), True])
def test_non_finite_number_is_rejected(number: float) -> None:
    with pytest.raises(QuantityError, match="finite number"):
        thousandths(number)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        assert MIN_INT64 <= value(text) <= MAX_INT64
    except QuantityError as error:
        assert repr(text[:64]) in str(error)  # noqa: PT017  (either outcome is right)
