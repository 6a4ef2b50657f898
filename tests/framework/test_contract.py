"""Within one api_version the public API only grows."""

from __future__ import annotations

import pytest

from tests.framework.api_forms import breaches, present, written


def test_recorded_api_is_still_present() -> None:
    assert breaches(written(), present()) == []


def test_recorded_api_is_complete() -> None:
    assert written() == present(), "run python -m tests.framework.api_forms"


BEFORE = {
    "f.P": "class",
    "f.P.filter": "abstract function(self, pod)",
    "f.P.applies_to": "function(self)",
    "f.Scope.NODE": "'node'",
    "f.LIMIT": "100",
    "f.find": "function(name, *deep=)",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"f.P.filter": None}, "f.P.filter is gone"),
        ({"f.P.filter": "abstract function(self, pod, node)"}, "f.P.filter was "),
        ({"f.P.filter": "abstract function(self, item)"}, "f.P.filter was "),
        ({"f.P.filter": "abstract async(self, pod)"}, "f.P.filter was "),
        ({"f.P.applies_to": "abstract function(self)"}, "f.P.applies_to was "),
        ({"f.P.weigh": "abstract function(self)"}, "f.P.weigh has to be implemented"),
        ({"f.Scope.NODE": "'row'"}, "f.Scope.NODE was 'node', is 'row'"),
        ({"f.LIMIT": "99"}, "f.LIMIT was 100, is 99"),
    ],
)
def test_breaking_change_is_reported(change: dict[str, str | None], message: str) -> None:
    now = {entry: form for entry, form in {**BEFORE, **change}.items() if form is not None}
    (breach,) = breaches(BEFORE, now)
    assert breach.startswith(message)


@pytest.mark.parametrize(
    "change",
    [
        {"f.P.filter": "abstract function(self, pod, deep=)"},
        {"f.P.extra": "function(self)"},
        {"f.Q": "class", "f.Q.check": "abstract function(self)"},
        {"f.Scope.ROW": "'row'"},
        {"f.find": "function(name, *deep=, *wide=)"},
    ],
)
def test_addition_is_not_reported(change: dict[str, str]) -> None:
    assert breaches(BEFORE, {**BEFORE, **change}) == []
