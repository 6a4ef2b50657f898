"""Server-side apply: ownership of fields, removal, conflicts."""

from __future__ import annotations

from typing import Any

import pytest

from asched.apiserver.apply import server_side_apply
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.requests import RequestInfo
from tests.apiserver.objects import FakeClock, pod

Object = dict[str, Any]


class Applier:
    """Applies configurations of the pod ``p``."""

    def __init__(self) -> None:
        self.cluster = EmbeddedCluster(clock=FakeClock(), seed=1)

    def apply(self, manager: str, *, labels: Object, force: bool = False, **spec: Any) -> Object:
        applied = pod("p", **spec)
        applied["metadata"]["labels"] = labels
        return self.send(manager, applied, force=force)

    def label(self, manager: str, labels: Object, *, force: bool = False) -> Object:
        """Apply labels."""
        return self.send(manager, {"metadata": {"name": "p", "labels": labels}}, force=force)

    def send(self, manager: str, applied: Object, *, force: bool) -> Object:
        query = {"fieldManager": manager, "force": str(force)}
        info = RequestInfo("patch", self.cluster.resource("pods"), "default", "p", query=query)
        return server_side_apply(self.cluster.api, info, applied)[0].obj


@pytest.fixture
def applier() -> Applier:
    return Applier()


def test_first_apply_creates_and_records_the_manager(applier: Applier) -> None:
    made = applier.apply("a", labels={"x": "1"})
    (entry,) = made["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("a", "Apply")
    assert entry["fieldsV1"]["f:metadata"] == {"f:labels": {"f:x": {}}}
    assert 'k:{"name":"c"}' in entry["fieldsV1"]["f:spec"]["f:containers"]


def test_repeated_apply_writes_nothing(applier: Applier) -> None:
    first = applier.apply("a", labels={"x": "1"})
    assert applier.apply("a", labels={"x": "1"}) == first
    assert applier.cluster.revision == int(first["metadata"]["resourceVersion"])


def test_omitted_owned_field_is_removed(applier: Applier) -> None:
    applier.apply("a", labels={"x": "1", "y": "1"})
    assert applier.apply("a", labels={"y": "1"})["metadata"]["labels"] == {"y": "1"}


def test_field_of_another_manager_is_kept(applier: Applier) -> None:
    applier.apply("a", labels={"x": "1", "y": "1"})
    applier.label("b", {"x": "1", "z": "1"})
    after = applier.apply("a", labels={"y": "1"})
    assert after["metadata"]["labels"] == {"x": "1", "y": "1", "z": "1"}


def test_changing_another_managers_field_conflicts_unless_forced(applier: Applier) -> None:
    applier.apply("a", labels={"x": "1"})
    with pytest.raises(StatusError) as error:
        applier.label("b", {"x": "2"})
    assert error.value.code == 409
    assert error.value.message == (
        'Apply failed with 1 conflict: conflict with "a": .metadata.labels.x'
    )
    forced = applier.label("b", {"x": "2"}, force=True)
    assert forced["metadata"]["labels"] == {"x": "2"}


def test_keyed_list_elements_are_owned_separately(applier: Applier) -> None:
    applier.apply("a", labels={}, schedulingGates=[{"name": "g1"}, {"name": "g2"}])
    after = applier.apply("a", labels={}, schedulingGates=[{"name": "g2"}])
    assert after["spec"]["schedulingGates"] == [{"name": "g2"}]
    assert after["spec"]["containers"][0]["name"] == "c"


def test_apply_without_manager_is_rejected(applier: Applier) -> None:
    with pytest.raises(StatusError, match="fieldManager: Required value") as error:
        applier.apply("", labels={})
    assert error.value.code == 400
