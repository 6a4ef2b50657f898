"""kube-batch's resource arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.resource_vector import EXACT, TOLERANT, ResourceVector, share

MI = 1024 * 1024
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "gpu", "fpga"]), st.integers(0, 1 << 40).map(float)
)
vectors = amounts.map(ResourceVector.of)


@pytest.mark.parametrize(
    ("first", "second", "tolerant", "exact"),
    [
        ({"cpu": 100}, {"cpu": 100}, True, True),
        ({"cpu": 109}, {"cpu": 100}, True, False),
        ({"cpu": 110}, {"cpu": 100}, False, False),
        ({"memory": 10 * MI - 1}, {}, True, False),
        ({"memory": 10 * MI}, {}, False, False),
        # Scalars up to ten thousandths are ignored.
        ({"gpu": 10}, {}, True, False),
        ({"gpu": 11}, {}, False, False),
        ({"gpu": 1000}, {"gpu": 991}, True, False),
        ({"gpu": 1000}, {"gpu": 990}, False, False),
    ],
)
def test_less_equal(
    first: dict[str, float], second: dict[str, float], tolerant: bool, exact: bool
) -> None:
    one, other = ResourceVector.of(first), ResourceVector.of(second)
    assert one.less_equal(other, TOLERANT) is tolerant
    assert one.less_equal(other, EXACT) is exact


@pytest.mark.parametrize(
    ("first", "second", "less"),
    [
        ({"cpu": 1, "memory": 1}, {"cpu": 2, "memory": 2}, True),
        ({"cpu": 1, "memory": 2}, {"cpu": 2, "memory": 2}, False),
        # Without own scalars, each scalar of the other must exceed the threshold.
        ({"cpu": 1, "memory": 1}, {"cpu": 2, "memory": 2, "gpu": 10}, False),
        ({"cpu": 1, "memory": 1}, {"cpu": 2, "memory": 2, "gpu": 11}, True),
        ({"cpu": 1, "memory": 1, "gpu": 1}, {"cpu": 2, "memory": 2}, False),
        ({"cpu": 1, "memory": 1, "gpu": 1}, {"cpu": 2, "memory": 2, "gpu": 2}, True),
        ({"cpu": 1, "memory": 1, "gpu": 1}, {"cpu": 2, "memory": 2, "fpga": 2}, False),
    ],
)
def test_less(first: dict[str, float], second: dict[str, float], less: bool) -> None:
    assert ResourceVector.of(first).less(ResourceVector.of(second)) is less


def test_minimum_has_common_scalars() -> None:
    one = ResourceVector.of({"cpu": 5, "memory": 1, "gpu": 3})
    assert one.minimum(ResourceVector.of({"cpu": 2, "memory": 9})).amounts() == {
        "cpu": 2,
        "memory": 1,
    }
    other = ResourceVector.of({"cpu": 2, "memory": 9, "fpga": 1})
    assert one.minimum(other).amounts() == {"cpu": 2, "memory": 1, "gpu": 0}


def test_zero_is_below_every_threshold() -> None:
    little = ResourceVector.of({"cpu": 9, "memory": 10 * MI - 1, "gpu": 9})
    assert little.is_empty()
    assert not little.is_empty(EXACT)
    assert ResourceVector().is_empty(EXACT)
    assert not ResourceVector.of({"cpu": 10}).is_empty()


def test_share_of_zero() -> None:
    assert share(0, 0) == 0
    assert share(1, 0) == 1
    assert share(1, 4) == 0.25


@given(vectors, vectors)
def test_sub_reverts_add(first: ResourceVector, second: ResourceVector) -> None:
    before = {name: first.get(name) for name in ("cpu", "memory", "gpu", "fpga")}
    after = first.copy().add(second).sub(second)
    assert {name: after.get(name) for name in before} == before


@given(vectors, vectors)
def test_exact_fit_implies_tolerant_fit(first: ResourceVector, second: ResourceVector) -> None:
    if first.less_equal(second, EXACT):
        assert first.less_equal(second)
        assert all(first.get(name) <= second.get(name) for name in first.names())
