"""More than one replica: leader election and its permissions in the chart."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from asched.apiserver.auth import AuthRule, User
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.config.file import parse
from asched.config.kube_scheduler import LeaderElection
from asched.config.registry import PluginRegistry
from asched.daemon.ha.election import LeaseTiming
from asched.daemon.ha.leadership import election_of
from asched.daemon.ha.lease import LeaderElector, LeaseName
from asched.kube.connection import connect
from tests.daemon.world import ObservedFaults
from tests.helm.chart import FULL_NAME, NAMESPACE, VALUE_SETS, config_of, only, rendered, workload


def election(values: str) -> LeaderElection | None:
    text = config_of(rendered(VALUE_SETS[values]))["asched.yaml"]
    return election_of(parse(text, "asched.yaml", PluginRegistry.discover()))


def test_single_replica_has_no_election() -> None:
    assert election("defaults") is None
    assert {"Role", "RoleBinding"} & {each["kind"] for each in rendered({})} == set()


def test_several_replicas_elect_leader() -> None:
    found = election("replicas")
    assert found is not None
    assert (found.resource_namespace, found.resource_name) == (NAMESPACE, FULL_NAME)
    assert found.lease_duration.total_seconds() == 15
    other = election("replicas-postgres")
    assert other is not None
    assert other.resource_name == "turn"
    assert other.lease_duration.total_seconds() == 30
    assert workload(rendered(VALUE_SETS["replicas"]))["spec"]["replicas"] == 2


def test_postgres_replicas_are_replaced_one_by_one() -> None:
    strategy = workload(rendered(VALUE_SETS["replicas-postgres"]))["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


@pytest.mark.parametrize("values", ["replicas", "replicas-postgres"])
async def test_role_equals_requests_of_election(values: str, tmp_path: Path) -> None:
    objects = rendered(VALUE_SETS[values])
    found, role = election(values), only(objects, "Role")
    assert found is not None
    rules = tuple(
        AuthRule(
            frozenset(rule["verbs"]),
            rule["apiGroups"][0],
            frozenset(rule["resources"]),
            frozenset(rule.get("resourceNames", ())),
        )
        for rule in role["rules"]
    )
    assert role["metadata"]["namespace"] == found.resource_namespace
    user = User("system:serviceaccount:kube-system:prod-asched", rules)
    asked: set[str] = set()
    faults, watched = ObservedFaults(), anyio.Event()

    def on_request(verb: str, resource: str) -> None:
        assert resource == "leases"
        asked.add(verb)
        if verb == "watch":
            watched.set()

    faults.on_request = on_request
    server = ApiServer(EmbeddedCluster(seed=1), tokens={"token": user}, faults=faults)
    lease = LeaseName(found.resource_namespace, found.resource_name)
    async with (
        server.run(),
        connect(server.kubeconfig(tmp_path / "config", user=user)) as client,
    ):
        ours = LeaderElector(client, lease, "ours", LeaseTiming())
        next_one = LeaderElector(client, lease, "next", LeaseTiming(3600, 1800, 600))
        with anyio.fail_after(20):
            await ours.acquire()
            watched = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(next_one.acquire)
                await watched.wait()
                assert await ours.release()
        assert next_one.leads()
    assert asked == {verb for rule in rules for verb in rule.verbs}
