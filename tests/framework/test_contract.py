"""Within one api_version the contract only grows, and what is renamed warns first."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest

import asched.framework
from asched.framework import Status
from asched.framework.deprecation import Renamed, renamed_names
from tests.framework.api_forms import breaches, present, written


def test_nothing_of_the_contract_was_taken_away() -> None:
    assert breaches(written(), present()) == []


def test_what_was_added_is_written_down() -> None:
    assert written() == present(), "run python -m tests.framework.api_forms"


BEFORE = {
    "f.P": "class", "f.P.filter": "abstract function(self, pod)", "f.P.concerns": "function(self)",
    "f.Scope.NODE": "'node'", "f.LIMIT": "100", "f.find": "function(name, *deep=)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"f.P.filter": None}, "f.P.filter is gone"),
        ({"f.P.filter": "abstract function(self, pod, node)"}, "f.P.filter was "),
        ({"f.P.filter": "abstract function(self, item)"}, "f.P.filter was "),
        ({"f.P.filter": "abstract async(self, pod)"}, "f.P.filter was "),
        ({"f.P.concerns": "abstract function(self)"}, "f.P.concerns was "),
        ({"f.P.weigh": "abstract function(self)"}, "f.P.weigh has to be implemented"),
        ({"f.Scope.NODE": "'row'"}, "f.Scope.NODE was 'node', is 'row'"),
        ({"f.LIMIT": "99"}, "f.LIMIT was 100, is 99"),
    ],
)
def test_what_breaks_the_contract(change: dict[str, str | None], told: str) -> None:
    now = {entry: form for entry, form in {**BEFORE, **change}.items() if form is not None}
    (breach,) = breaches(BEFORE, now)
    assert breach.startswith(told)


@pytest.mark.parametrize(
    "change",
    [
        {"f.P.filter": "abstract function(self, pod, deep=)"},
        {"f.P.told": "function(self)"},
        {"f.Q": "class", "f.Q.ask": "abstract function(self)"},
        {"f.Scope.ROW": "'row'"},
        {"f.find": "function(name, *deep=, *wide=)"},
    ],
)
def test_what_only_adds_to_it(change: dict[str, str]) -> None:
    assert breaches(BEFORE, {**BEFORE, **change}) == []


def old_module() -> Any:
    module = ModuleType("asched.framework.older")
    entry = Renamed("asched.framework.status:Status", "0.2.0", 2)
    vars(module)["__getattr__"] = renamed_names(module.__name__, {"Answer": entry})
    return module


def test_an_old_name_works_and_warns_with_the_line_that_uses_it() -> None:
    module = old_module()
    with pytest.warns(DeprecationWarning, match="is called") as warned:
        assert module.Answer is Status
    (told,) = warned
    assert str(told.message) == (
        "asched.framework.older.Answer is called asched.framework.status.Status since asched 0.2.0;"
        " the old name goes with api_version 2"
    )
    assert told.filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'Reply'"):
        module.Reply  # noqa: B018  asking is the point


def test_the_face_knows_its_old_names_and_no_others() -> None:
    face: Any = asched.framework
    with pytest.raises(AttributeError, match="has no attribute 'Typo'"):
        face.Typo  # noqa: B018  asking is the point
    for name, entry in asched.framework.RENAMED.items():
        assert name not in asched.framework.__all__
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert getattr(face, name).__name__ == entry.now.rpartition(":")[2]
        assert len(warned) == 1
