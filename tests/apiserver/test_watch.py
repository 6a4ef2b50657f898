"""Watches deliver all events in order and agree with lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.listing import ListOptions
from asched.apiserver.storage import ServedWatchEvent, Watcher
from tests.apiserver.objects import FakeClock, node, pod


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster(clock=FakeClock(), seed=1)


def shown(events: list[ServedWatchEvent]) -> list[tuple[str, str]]:
    return [(event.type, event.stored.key) for event in events]


def test_watch_shows_existing_objects_then_changes(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a"))
    with cluster.watch("nodes") as watcher:
        cluster.create("nodes", node("b"))
        cluster.patch("nodes", "a", {"spec": {"unschedulable": True}})
        cluster.delete("nodes", "b")
        assert shown(watcher.drain()) == [
            ("ADDED", "a"),
            ("ADDED", "b"),
            ("MODIFIED", "a"),
            ("DELETED", "b"),
        ]


def test_watch_resumes_after_a_revision(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a"))
    revision = cluster.revision
    cluster.create("nodes", node("b"))
    with cluster.watch("nodes", from_revision=revision) as watcher:
        cluster.create("nodes", node("c"))
        assert shown(watcher.drain()) == [("ADDED", "b"), ("ADDED", "c")]


def test_deletion_has_its_own_revision(cluster: EmbeddedCluster) -> None:
    made = cluster.create("nodes", node("a"))
    with cluster.watch("nodes", from_revision=cluster.revision) as watcher:
        cluster.delete("nodes", "a")
        (event,) = watcher.drain()
    assert int(event.stored.obj["metadata"]["resourceVersion"]) == cluster.revision
    assert event.stored.obj["metadata"]["uid"] == made["metadata"]["uid"]


def test_object_that_stops_matching_is_deleted_in_its_last_matching_state(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create("pods", pod("p"))
    with (
        cluster.watch("pods", fields="spec.nodeName=") as unbound,
        cluster.watch("pods", fields="spec.nodeName=n") as bound,
    ):
        unbound.drain()
        cluster.bind("default", "p", "n")
        (gone,), (came,) = unbound.drain(), bound.drain()
    assert (gone.type, came.type) == ("DELETED", "ADDED")
    assert "nodeName" not in gone.stored.obj["spec"]
    assert gone.stored.rv == came.stored.rv == cluster.revision


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("a=1", ["x"]),
        ("a==1,b", ["x"]),
        ("a!=1", ["y", "z"]),
        ("a in (1, 2)", ["x", "y"]),
        ("a notin (1)", ["y", "z"]),
        ("!a", ["z"]),
        ("a", ["x", "y"]),
        ("a>1", ["y"]),
        ("", ["x", "y", "z"]),
    ],
)
def test_label_selectors(cluster: EmbeddedCluster, labels: str, expected: list[str]) -> None:
    for name, own in (("x", {"a": "1", "b": ""}), ("y", {"a": "2"}), ("z", {})):
        cluster.create("nodes", node(name, **own))
    found = [n["metadata"]["name"] for n in cluster.list("nodes", labels=labels)]
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b"]),
        ("spec.nodeName=n", ["b"]),
        ("spec.nodeName=", ["a"]),
        ("spec.nodeName=n,metadata.name=a", []),
        ("status.phase!=Succeeded,spec.schedulerName=default-scheduler", ["a", "b"]),
    ],
)
def test_field_selectors(cluster: EmbeddedCluster, fields: str, expected: list[str]) -> None:
    cluster.create("pods", pod("a"))
    cluster.create("pods", pod("b", nodeName="n"))
    assert [p["metadata"]["name"] for p in cluster.list("pods", fields=fields)] == expected


@pytest.mark.parametrize(
    "selector", [{"labels": "a=(b"}, {"fields": "spec.image=x"}, {"fields": "x"}]
)
def test_invalid_selectors_are_bad_requests(
    cluster: EmbeddedCluster, selector: dict[str, str]
) -> None:
    with pytest.raises(StatusError) as error:
        cluster.list("pods", **selector)
    assert error.value.code == 400


def test_unschedulable_nodes_can_be_selected(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a"))
    cluster.create("nodes", node("b"))
    cluster.patch("nodes", "b", {"spec": {"unschedulable": True}})
    assert len(cluster.list("nodes", fields="spec.unschedulable=false")) == 1


def test_history_is_bounded() -> None:
    cluster = EmbeddedCluster(clock=FakeClock())
    cluster.api.storage(cluster.resource("nodes")).history.limit = 5
    start = cluster.revision
    for index in range(10):
        cluster.create("nodes", node(f"n{index}"))
    with pytest.raises(StatusError) as error, cluster.watch("nodes", from_revision=start):
        pass
    assert (error.value.code, error.value.reason) == (410, "Expired")
    with cluster.watch("nodes", from_revision=cluster.revision - 3) as watcher:
        assert len(watcher.drain()) == 3


def test_expired_history_affects_every_resource(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a"))
    before = cluster.revision - 1
    cluster.expire_history()
    with pytest.raises(StatusError), cluster.watch("nodes", from_revision=before):
        pass
    with cluster.watch("nodes", from_revision=cluster.revision) as watcher:
        assert watcher.drain() == []


def test_closed_watch_unsubscribes(cluster: EmbeddedCluster) -> None:
    with cluster.watch("nodes") as watcher:
        cluster.create("nodes", node("a"))
        assert len(watcher.drain()) == 1
    cluster.create("nodes", node("b"))
    assert watcher.drain() == []


async def test_waiting_for_events(cluster: EmbeddedCluster) -> None:
    with cluster.watch("nodes", from_revision=cluster.revision) as watcher:
        assert await watcher.next_batch(timeout_s=0) == []
        cluster.create("nodes", node("a"))
        assert shown(await watcher.next_batch()) == [("ADDED", "a")]
        watcher.close()
        assert [event async for event in watcher] == []


@dataclass
class Mirror:
    """The state of a client that lists once and then watches."""

    watcher: Watcher
    objects: dict[str, Any] = field(default_factory=dict)
    revision: int = 0

    def catch_up(self) -> None:
        for event in self.watcher.drain():
            assert event.stored.rv >= self.revision, "revisions never go back"
            self.revision = event.stored.rv
            key = event.stored.key
            if event.type == "DELETED":
                assert key in self.objects, "nothing is deleted that was not there"
                del self.objects[key]
            else:
                assert (key in self.objects) is (event.type == "MODIFIED")
                self.objects[key] = event.stored.obj


names = st.sampled_from(["a", "b", "c", "a-b", "d"])
namespaces = st.sampled_from(["default", "kube-system"])


class Tolerated:
    """Swallows a StatusError of the given codes and nothing else."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, StatusError) and error.code in self.codes


class ListAndWatch(RuleBasedStateMachine):
    """Random writes: each mirror equals the list of its selector after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = EmbeddedCluster(clock=FakeClock(), seed=1)
        self.cluster.api.storage(self.cluster.resource("pods")).history.limit = 10
        self.selectors: list[dict[str, Any]] = [
            {},
            {"fields": "spec.nodeName="},
            {"labels": "x=1"},
            {"namespace": "default"},
        ]
        self.mirrors = [Mirror(self.cluster.watch("pods", **s)) for s in self.selectors]
        self.paging: tuple[list[str], list[str], str] | None = None

    @rule(name=names, namespace=namespaces, label=st.sampled_from(["1", "2"]))
    def create(self, name: str, namespace: str, label: str) -> None:
        made = pod(name, namespace)
        made["metadata"]["labels"] = {"x": label}
        self.attempt(lambda: self.cluster.create("pods", made))

    @rule(name=names, namespace=namespaces)
    def bind(self, name: str, namespace: str) -> None:
        self.attempt(lambda: self.cluster.bind(namespace, name, "n"))

    @rule(name=names, namespace=namespaces, label=st.sampled_from(["1", "2", None]))
    def label(self, name: str, namespace: str, label: str | None) -> None:
        patch = {"metadata": {"labels": {"x": label}}}
        self.attempt(lambda: self.cluster.patch("pods", name, patch, namespace=namespace))

    @rule(name=names, namespace=namespaces, grace_s=st.sampled_from([0, 30]))
    def delete(self, name: str, namespace: str, grace_s: int) -> None:
        self.attempt(
            lambda: self.cluster.delete("pods", name, namespace=namespace, grace_period_s=grace_s)
        )

    @staticmethod
    def attempt(write: Callable[[], object]) -> None:
        """Random writes may meet missing or existing objects only."""
        with Tolerated(404, 409):
            write()

    @rule(index=st.integers(0, 3))
    def reconnect(self, index: int) -> None:
        """Break a watch and resume it, or list again after 410."""
        mirror, selector = self.mirrors[index], self.selectors[index]
        mirror.watcher.close()
        since = mirror.revision or self.cluster.revision
        with Tolerated(410):
            mirror.watcher = self.cluster.watch("pods", from_revision=since, **selector)
            return
        self.mirrors[index] = Mirror(self.cluster.watch("pods", **selector))

    @rule(limit=st.integers(1, 3))
    def next_page(self, limit: int) -> None:
        """Pages of a list during writes show the state of the first page."""
        pods = self.cluster.resource("pods")
        expected = [stored.key for stored in self.cluster.stored("pods")]
        seen: list[str] = []
        token = ""
        if self.paging is not None:
            expected, seen, token = self.paging
        page = None
        with Tolerated(410):
            page = self.cluster.api.list(pods, ListOptions(limit=limit, continue_token=token))
        if page is None:
            self.paging = None
            return
        seen = [*seen, *(stored.key for stored in page.items)]
        if page.continue_token:
            self.paging = (expected, seen, page.continue_token)
        else:
            assert seen == expected
            self.paging = None

    @invariant()
    def mirrors_equal_lists(self) -> None:
        for mirror, selector in zip(self.mirrors, self.selectors, strict=True):
            mirror.catch_up()
            listed = self.cluster.list("pods", **selector)
            assert [mirror.objects[key] for key in sorted(mirror.objects)] == listed

    def teardown(self) -> None:
        for mirror in self.mirrors:
            mirror.watcher.close()


ListAndWatch.TestCase.settings = settings(stateful_step_count=30, deadline=None)
TestListAndWatch = ListAndWatch.TestCase
