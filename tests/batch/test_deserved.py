"""Deserved shares of queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asched.batch.plugins.shares import (
    Claim,
    capability_of,
    deserved_as_kube_batch,
    deserved_by_resource,
)
from asched.framework.resource_vector import ResourceVector


def vector(cpu: float, memory: float = 0.0) -> ResourceVector:
    return ResourceVector(float(cpu), float(memory))


def claims_of(*claims: tuple[int, ResourceVector]) -> list[Claim]:
    return [Claim(f"q{n}", weight, request, None) for n, (weight, request) in enumerate(claims)]


def test_deserved_follows_weight() -> None:
    claims = claims_of((1, vector(9000)), (3, vector(9000)))
    found = deserved_by_resource(vector(8000), claims)
    assert [found["q0"].milli_cpu, found["q1"].milli_cpu] == [2000, 6000]


def test_unused_share_is_divided_by_weight() -> None:
    claims = claims_of((2, vector(1000)), (1, vector(9000)), (2, vector(9000)))
    found = deserved_by_resource(vector(10_000), claims)
    assert [found[f"q{n}"].milli_cpu for n in range(3)] == [1000, 3000, 6000]


def test_resources_are_divided_separately() -> None:
    claims = claims_of((1, vector(8000, 100)), (1, vector(100, 8000)))
    total = vector(8000, 8000)
    ours = deserved_by_resource(total, claims)
    assert (ours["q0"].milli_cpu, ours["q0"].memory_bytes) == (7900, 100)
    # kube-batch limits a queue only if it requests less of every resource.
    theirs = deserved_as_kube_batch(total, claims)
    assert (theirs["q0"].milli_cpu, theirs["q0"].memory_bytes) == (4000, 4000)


def test_capability_limits_deserved() -> None:
    limited = Claim("q0", 1, vector(9000), vector(1000))
    other = Claim("q1", 1, vector(9000), None)
    found = deserved_by_resource(vector(8000), [limited, other])
    assert [found["q0"].milli_cpu, found["q1"].milli_cpu] == [1000, 7000]


def test_resource_without_capability_is_unlimited() -> None:
    capability = ResourceVector.of({"cpu": 1000.0, "gpu": 0.0})
    assert capability_of(capability, "cpu") == 1000
    assert capability_of(capability, "memory") is None
    assert capability_of(capability, "gpu") == 0
    assert capability_of(None, "cpu") is None


def test_zero_weight_deserves_nothing() -> None:
    claims = claims_of((0, vector(1000)), (0, vector(1000)))
    for divide in (deserved_by_resource, deserved_as_kube_batch):
        assert divide(vector(8000), claims)["q0"].milli_cpu == 0


@given(
    st.integers(0, 100_000),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50_000)), max_size=6),
)
def test_division_is_complete(total: int, wants: list[tuple[int, int]]) -> None:
    claims = claims_of(*((weight, vector(cpu)) for weight, cpu in wants))
    found = deserved_by_resource(vector(total), claims)
    parts = [found[claim.queue].milli_cpu for claim in claims]
    wanted = [cpu if weight else 0 for weight, cpu in wants]
    assert all(part <= want + 1e-6 for part, want in zip(parts, wanted, strict=True))
    assert abs(sum(parts) - min(total, sum(wanted))) < 1e-6
    # An unsatisfied queue has the maximum share per weight.
    level = max((p / w for p, (w, _) in zip(parts, wants, strict=True) if w), default=0)
    for part, want, (weight, _) in zip(parts, wanted, wants, strict=True):
        assert not weight or part >= want - 1e-6 or part / weight >= level - 1e-6
