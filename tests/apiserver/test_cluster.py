"""Generic behaviour of the embedded API."""

from __future__ import annotations

import pytest

from asched.apiserver.api import DeleteOptions
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.errors import StatusError
from asched.apiserver.listing import ListOptions
from tests.apiserver.objects import FakeClock, node, pod


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster(clock=FakeClock(), seed=1)


def refused(error: pytest.ExceptionInfo[StatusError]) -> tuple[int, str, str]:
    return error.value.code, error.value.reason, error.value.message


def test_new_cluster_has_system_namespaces_and_priority_classes(
    cluster: EmbeddedCluster,
) -> None:
    names = [namespace["metadata"]["name"] for namespace in cluster.list("namespaces")]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    values = {
        found["metadata"]["name"]: found["value"] for found in cluster.list("priorityclasses")
    }
    assert values == {
        "system-cluster-critical": 2_000_000_000,
        "system-node-critical": 2_000_001_000,
    }


def test_every_write_increments_the_cluster_revision(cluster: EmbeddedCluster) -> None:
    before = cluster.revision
    first = cluster.create("nodes", node("a"))
    second = cluster.create("pods", pod("p"))
    assert first["metadata"]["resourceVersion"] == str(before + 1)
    assert second["metadata"]["resourceVersion"] == str(before + 2) == str(cluster.revision)


def test_creation_sets_system_metadata_and_generated_names(cluster: EmbeddedCluster) -> None:
    made = pod()
    made["metadata"] = {"generateName": "job-", "namespace": "default", "uid": "mine"}
    created = cluster.create("pods", made)["metadata"]
    assert created["name"].startswith("job-")
    assert len(created["name"]) == len("job-") + 5
    assert created["uid"] != "mine"
    assert created["generation"] == 1
    assert created["creationTimestamp"] == "2027-01-15T08:00:00Z"


def test_input_objects_are_copied(cluster: EmbeddedCluster) -> None:
    mine = pod("p")
    cluster.create("pods", mine)
    assert "status" not in mine
    mine["spec"]["containers"][0]["image"] = "other"
    assert (
        cluster.get("pods", "p", namespace="default")["spec"]["containers"][0]["image"] != "other"
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda c: c.get("nodes", "x"), (404, "NotFound", 'nodes "x" not found')),
        (
            lambda c: c.create("nodes", node("BAD NAME")),
            (422, "Invalid", 'Node "BAD NAME" is invalid: metadata.name: Invalid value'),
        ),
        (
            lambda c: c.create("pods", pod("p", "nowhere")),
            (404, "NotFound", 'namespaces "nowhere" not found'),
        ),
        (
            lambda c: c.create("pods", pod("p", containers=[])),
            (422, "Invalid", 'Pod "p" is invalid: spec.containers: Required value'),
        ),
        (
            lambda c: c.create("nodes", node("n" * 254)),
            (422, "Invalid", f'Node "{"n" * 254}" is invalid: metadata.name: Invalid value'),
        ),
        (
            lambda c: c.create("nodes", {"kind": "Pod", "metadata": {"name": "n"}}),
            (400, "BadRequest", 'Node in version "v1" cannot be handled as a Node'),
        ),
        (
            lambda c: c.create(
                "nodes", {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "lots"}}}
            ),
            (400, "BadRequest", 'Node in version "v1" cannot be handled as a Node: quantities'),
        ),
    ],
)
def test_invalid_objects_get_kube_apiserver_messages(
    cluster: EmbeddedCluster, make: object, expected: tuple[int, str, str]
) -> None:
    assert callable(make)
    before = cluster.revision
    with pytest.raises(StatusError) as error:
        make(cluster)
    code, reason, message = refused(error)
    assert (code, reason) == expected[:2]
    assert message.startswith(expected[2])
    assert cluster.revision == before, "a refused request writes nothing"


def test_create_existing_name_is_a_conflict(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a"))
    with pytest.raises(StatusError) as error:
        cluster.create("nodes", node("a"))
    assert refused(error) == (409, "AlreadyExists", 'nodes "a" already exists')


def test_update_with_stale_resource_version_conflicts(cluster: EmbeddedCluster) -> None:
    stale = cluster.create("nodes", node("a"))["metadata"]["resourceVersion"]
    cluster.patch("nodes", "a", {"metadata": {"labels": {"x": "1"}}})
    with pytest.raises(StatusError) as error:
        cluster.patch("nodes", "a", {"metadata": {"resourceVersion": stale, "labels": {"x": "2"}}})
    assert error.value.code == 409
    assert "the object has been modified" in error.value.message


def test_unchanged_update_writes_nothing(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a", zone="z"))
    before = cluster.revision
    cluster.patch("nodes", "a", {"metadata": {"labels": {"zone": "z"}}})
    assert cluster.revision == before


def test_status_and_spec_are_separate_subresources(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create("nodes", node("a"))
    both = {"spec": {"unschedulable": True}, "status": {"phase": "x"}}
    main = cluster.patch("nodes", "a", both)
    assert main["spec"] == {"unschedulable": True}
    assert "phase" not in main["status"]
    status = cluster.patch(
        "nodes",
        "a",
        {"spec": {"unschedulable": None}, "status": {"phase": "x"}},
        subresource="status",
    )
    assert status["spec"] == {"unschedulable": True}
    assert status["status"]["phase"] == "x"


def test_generation_counts_spec_changes_only(cluster: EmbeddedCluster) -> None:
    cluster.create("pods", pod("p"))
    labelled = cluster.patch("pods", "p", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    assert labelled["metadata"]["generation"] == 1
    toleration = [
        *labelled["spec"]["tolerations"],
        {"key": "k", "operator": "Exists", "effect": "NoSchedule"},
    ]
    changed = cluster.patch("pods", "p", {"spec": {"tolerations": toleration}}, namespace="default")
    assert changed["metadata"]["generation"] == 2


def test_finalizers_delay_removal(cluster: EmbeddedCluster) -> None:
    held = node("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.create("nodes", held)
    marked = cluster.delete("nodes", "a")
    assert marked["metadata"]["deletionTimestamp"]
    assert cluster.count("nodes") == 1
    cluster.patch("nodes", "a", {"metadata": {"finalizers": None}})
    assert cluster.count("nodes") == 0


def test_deleting_a_namespace_deletes_its_contents(cluster: EmbeddedCluster) -> None:
    cluster.create("namespaces", {"metadata": {"name": "team"}})
    cluster.create("pods", pod("p", "team"))
    cluster.create("pods", pod("p", "default"))
    cluster.delete("namespaces", "team")
    assert [found["metadata"]["namespace"] for found in cluster.list("pods")] == ["default"]
    with pytest.raises(StatusError) as error:
        cluster.create("pods", pod("q", "team"))
    assert refused(error)[:2] == (404, "NotFound")


def test_deletion_preconditions_are_checked(cluster: EmbeddedCluster) -> None:
    cluster.create("nodes", node("a"))
    nodes = cluster.resource("nodes")
    for options in (DeleteOptions(uid="other"), DeleteOptions(resource_version="1")):
        with pytest.raises(StatusError) as error:
            cluster.api.delete(nodes, "", "a", options)
        assert refused(error)[:2] == (409, "Conflict")
    assert cluster.count("nodes") == 1


def test_event_groups_are_views_of_the_same_objects(cluster: EmbeddedCluster) -> None:
    event = {
        "metadata": {"name": "e", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c",
        "reportingInstance": "c-1",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "said",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
    }
    cluster.create("events.events.k8s.io", event)
    core = cluster.get("events", "e", namespace="default")
    assert core["apiVersion"] == "v1"
    assert core["message"] == "said"
    assert core["involvedObject"]["name"] == "p"
    assert cluster.list("events", fields="involvedObject.name=p,reason=Scheduled") == [core]
    assert cluster.list("events", fields="involvedObject.name=q") == []


def test_custom_resource_is_served_while_its_definition_exists(cluster: EmbeddedCluster) -> None:
    definition = {
        "metadata": {"name": "queues.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "queues", "kind": "Queue"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
            ],
        },
    }
    with pytest.raises(KeyError):
        cluster.resource("queues.example.com")
    cluster.create("customresourcedefinitions", definition)
    established = cluster.get("customresourcedefinitions", "queues.example.com")
    held = {c["type"]: c["status"] for c in established["status"]["conditions"]}
    assert held == {"NamesAccepted": "True", "Established": "True"}

    queue = {"metadata": {"name": "q"}, "spec": {"weight": 1}, "status": {"ignored": 1}}
    assert "status" not in cluster.create("queues", queue)
    cluster.patch("queues", "q", {"status": {"state": "Open"}}, subresource="status")
    changed = cluster.patch("queues", "q", {"spec": {"weight": 2}, "status": {"state": "Closed"}})
    assert changed["status"] == {"state": "Open"}
    assert changed["metadata"]["generation"] == 2

    cluster.delete("customresourcedefinitions", "queues.example.com")
    with pytest.raises(KeyError):
        cluster.resource("queues.example.com")


def test_lease_update_requires_resource_version(cluster: EmbeddedCluster) -> None:
    leases = cluster.resource("leases")
    cluster.create("leases", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    blind = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}
    with pytest.raises(StatusError) as error:
        cluster.api.update(leases, "default", "l", lambda _: blind, unconditional=False)
    assert refused(error)[:2] == (422, "Invalid")


def test_pages_show_the_revision_of_the_first_page(cluster: EmbeddedCluster) -> None:
    for index in range(7):
        cluster.create("nodes", node(f"n{index}"))
    nodes = cluster.resource("nodes")
    first = cluster.api.list(nodes, ListOptions(limit=3))
    assert first.remaining == 4
    cluster.delete("nodes", "n5")
    cluster.create("nodes", node("n3-new"))
    cluster.patch("nodes", "n4", {"spec": {"unschedulable": True}})
    second = cluster.api.list(nodes, ListOptions(limit=3, continue_token=first.continue_token))
    third = cluster.api.list(nodes, ListOptions(limit=3, continue_token=second.continue_token))
    seen = [stored.key for page in (first, second, third) for stored in page.items]
    assert seen == [f"n{index}" for index in range(7)]
    assert first.rv == second.rv == third.rv
    assert second.items[1].obj["spec"] == {}
    assert third.continue_token == ""


def test_expired_page_offers_inconsistent_continuation(cluster: EmbeddedCluster) -> None:
    for index in range(4):
        cluster.create("nodes", node(f"n{index}"))
    nodes = cluster.resource("nodes")
    first = cluster.api.list(nodes, ListOptions(limit=2))
    cluster.create("nodes", node("n2-new"))
    cluster.expire_history()
    with pytest.raises(StatusError) as error:
        cluster.api.list(nodes, ListOptions(limit=2, continue_token=first.continue_token))
    assert refused(error)[:2] == (410, "Expired")
    again = cluster.api.list(nodes, ListOptions(continue_token=error.value.metadata["continue"]))
    assert [stored.key for stored in again.items] == ["n2", "n2-new", "n3"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (ListOptions(resource_version="99999"), 504),
        (ListOptions(resource_version="abc"), 500),
        (ListOptions(resource_version_match="Exact"), 422),
        (ListOptions(resource_version="0", resource_version_match="Exact"), 422),
        (ListOptions(continue_token="garbage", limit=1), 400),
    ],
)
def test_invalid_list_options_are_rejected(
    cluster: EmbeddedCluster, options: ListOptions, code: int
) -> None:
    with pytest.raises(StatusError) as error:
        cluster.api.list(cluster.resource("nodes"), options)
    assert error.value.code == code


def test_lists_use_the_key_order_of_etcd(cluster: EmbeddedCluster) -> None:
    for name in ("a", "a-b"):
        cluster.create("namespaces", {"metadata": {"name": name}})
        cluster.create("pods", pod("x", name))
    assert [found["metadata"]["namespace"] for found in cluster.list("pods")] == ["a-b", "a"]
    assert len(cluster.list("pods", namespace="a")) == 1
