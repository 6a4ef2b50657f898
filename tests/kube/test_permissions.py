"""kube-scheduler's role suffices, and the declared permissions are those used."""

from __future__ import annotations

from asched.apiserver.auth import KUBE_SCHEDULER_RULES, SCHEDULER, WantedAccess
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.kube.pod_writer import PodTarget, PodWriter
from asched.kube.reflector import OPTIONAL, ClusterWatch
from asched.kube.write_outcomes import WriteSucceeded
from asched.model.resources import Resource
from tests.kube.harness import BEGIN, ManualClock, View, client_for, running
from tests.permissions import REQUIRED


def test_role_grants_required_permissions() -> None:
    for group, resource, verb in REQUIRED:
        wanted = WantedAccess(verb, group, resource)
        assert any(rule.allows(wanted) for rule in KUBE_SCHEDULER_RULES), (
            group, resource, verb,
        )  # fmt: skip


def test_watched_resources_are_required_or_optional() -> None:
    listed = {(p.group, p.resource) for p in REQUIRED if p.verb == "watch"}
    for resource in Resource:
        asked = (resource.value.group, resource.plural) in listed
        assert asked is (resource not in OPTIONAL)


async def test_scheduler_user_can_watch_and_write() -> None:
    view, clock = View(), ManualClock(horizon_s=1)
    server = ApiServer(EmbeddedCluster(seed=1), tokens={"t": SCHEDULER})
    spec = {"containers": [{"name": "c", "image": "x"}]}
    async with (
        server.run(),
        client_for(server.url, clock, token="t") as client,
        running(ClusterWatch(client, view).run),
    ):
        await view.until(lambda: len(view.listed) == len(Resource))
        uid = server.cluster.create("pods", {"metadata": {"name": "p"}, "spec": spec})["metadata"][
            "uid"
        ]
        await view.until(lambda: view.names(Resource.PODS) == {"p"})
        writer, pod = PodWriter(client), PodTarget("default", "p", uid)
        for outcome in (
            await writer.nominate(pod, "n"),
            await writer.bind(pod, "n"),
            await writer.evict(pod, now=BEGIN),
        ):
            assert outcome == WriteSucceeded()
    assert {*view.listed} == {*Resource}
    assert view.listed[-1] is Resource.PODS
