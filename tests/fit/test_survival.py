"""Kaplan-Meier against its definition, and draws against the curve."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.fit.survival import Observed, SurvivalCurve, kaplan_meier


@st.composite
def observations(draw: st.DrawFn) -> list[Observed]:
    found = []
    for _ in range(draw(st.integers(0, 25))):
        entry = draw(st.one_of(st.just(0), st.integers(0, 8)))
        found.append(
            Observed(float(entry), float(entry + draw(st.integers(0, 8))), draw(st.booleans()))
        )
    return found


def by_definition(observed: list[Observed], age_s: float) -> Fraction:
    """The product over the ages at which something ended, up to an age."""
    share = Fraction(1)
    for age in sorted({one.exit_s for one in observed if one.ended}):
        if age > age_s:
            break
        ends = sum(one.ended and one.exit_s == age for one in observed)
        at_risk = sum(
            (one.entry_s < age or one.entry_s == 0) and one.exit_s >= age for one in observed
        )
        share *= 1 - Fraction(ends, max(at_risk, ends))
    return share


@given(observations())
def test_curve_is_the_product_of_its_definition(observed: list[Observed]) -> None:
    curve = kaplan_meier(observed)
    assert curve.observed == len(observed)
    for age in range(18):
        assert curve.share(age) == pytest.approx(float(by_definition(observed, age)), abs=1e-9)


@given(observations(), st.integers(0, 17))
def test_draws_follow_the_curve_of_those_that_reach_the_age(
    observed: list[Observed], age: int
) -> None:
    curve = kaplan_meier(observed)
    here = curve.share(age)
    number = 400
    drawn = [curve.remaining_s(age, (index + 0.5) / number) for index in range(number)]
    if here <= 0:
        assert set(drawn) == {None}
        return
    for more in range(1, 12):
        longer = sum(each is None or each > more for each in drawn) / number
        assert longer == pytest.approx(curve.share(age + more) / here, abs=1.5 / number)
    assert all(each is None or each > 0 for each in drawn)


def test_without_ends_nothing_ends() -> None:
    assert SurvivalCurve((), (), 0).remaining_s(3.0, 0.5) is None
    assert kaplan_meier([Observed(0, 5, False)]).remaining_s(0.0, 0.99) is None


def test_censored_ones_count_until_they_leave() -> None:
    """Two of four end at 1 and 3; one leaves at 2."""
    observed = [Observed(0, 1, True), Observed(0, 2, False), Observed(0, 3, True)]
    curve = kaplan_meier([*observed, Observed(0, 9, False)])
    assert [curve.share(age) for age in (0.5, 1, 2, 3)] == [1, 0.75, 0.75, 0.375]
