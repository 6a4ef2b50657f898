"""The version of a resource that is used, with a scripted server."""

from __future__ import annotations

import msgspec
import pytest

from asched.kube.decoding import MalformedResponseError
from asched.kube.errors import ApiError
from asched.kube.group_writer import GroupRef, GroupStatus, GroupWriter, PodGroupConditionPatch
from asched.kube.served_versions import ServedVersion
from asched.model.resources import GroupResource, Resource
from tests.kube.harness import (
    Answer,
    Asked,
    ManualClock,
    ScriptedServer,
    client_for,
    json_bytes,
    listing,
    refusal,
)

ROOT = "/apis/scheduling.k8s.io"
POD_GROUPS = Answer(body=json_bytes({"resources": [{"name": "podgroups"}]}))


class Served:
    """A script that serves discovery, and lists in the same versions."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.discovery = True

    def __call__(self, asked: Asked) -> Answer:
        version = asked.path.removeprefix(ROOT).strip("/").partition("/")[0]
        if asked.path == f"{ROOT}/{version}":
            if not self.discovery:
                return refusal(403, "Forbidden")
            return POD_GROUPS if version in self.versions else refusal(404, "NotFound")
        return listing([], "1") if version in self.versions else refusal(404, "NotFound")


@pytest.mark.parametrize("discovery", [True, False])
async def test_newest_served_version_is_chosen(discovery: bool) -> None:
    script = Served("v1alpha2")
    script.discovery = discovery
    async with ScriptedServer(script).run() as server, client_for(server.url, ManualClock()) as c:
        served = ServedVersion(c, GroupResource.POD_GROUPS)
        await served.changes()
        assert served.path == f"{ROOT}/v1alpha2/podgroups"
        assert served.api_version == "scheduling.k8s.io/v1alpha2"
        assert not await served.changes()
        script.versions = ("v1alpha2", "v1alpha3")
        assert await served.changes(), "a newer version is preferred"
        assert served.path == f"{ROOT}/v1alpha3/podgroups"
        script.versions = ("v1beta1",)
        assert served.withdraw()
        assert not served.withdraw(), "only the first 404 after a look-up"
        assert await served.changes()
        assert served.path == f"{ROOT}/v1beta1/podgroups"


async def test_unserved_group_is_reported() -> None:
    async with ScriptedServer(Served()).run() as server, client_for(server.url, ManualClock()) as c:
        served = ServedVersion(c, GroupResource.POD_GROUPS)
        with pytest.raises(ApiError) as error:
            await served.changes()
        assert error.value.status == 404
        assert not served.withdraw()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"resources": 3}'])
async def test_malformed_document_is_reported(body: bytes) -> None:
    def script(_asked: Asked) -> Answer:
        return Answer(body=body)

    async with ScriptedServer(script).run() as server, client_for(server.url, ManualClock()) as c:
        with pytest.raises(MalformedResponseError, match="/v1beta1: "):
            await ServedVersion(c, GroupResource.POD_GROUPS).changes()


async def test_resource_with_one_version_is_not_looked_up() -> None:
    async with ScriptedServer(Served()).run() as server, client_for(server.url, ManualClock()) as c:
        for resource in (Resource.PODS, GroupResource.VOLCANO_POD_GROUPS):
            served = ServedVersion(c, resource)
            assert not await served.changes()
            assert served.path == resource.path
            assert not served.api_version
        assert not server.asked


@pytest.mark.parametrize(
    ("kind", "version", "name", "other"),
    [
        ("PodGroup", "v1alpha2", "PodGroupScheduled", ["PodGroupInitiallyScheduled"]),
        ("PodGroup", "v1alpha3", "PodGroupInitiallyScheduled", ["PodGroupScheduled"]),
        ("PodGroup", "v1beta1", "PodGroupInitiallyScheduled", ["PodGroupScheduled"]),
        ("CompositePodGroup", "v1alpha3", "CompositePodGroupInitiallyScheduled", []),
    ],
)
async def test_condition_has_the_name_of_its_version(
    kind: str, version: str, name: str, other: list[str]
) -> None:
    def script(_asked: Asked) -> Answer:
        return Answer(body=b"{}")

    async with ScriptedServer(script).run() as server, client_for(server.url, ManualClock()) as c:
        ref = GroupRef.of(kind, "ns/g", "u", f"scheduling.k8s.io/{version}")
        written = (
            PodGroupConditionPatch(type="DisruptionTarget", status="True"),
            PodGroupConditionPatch(type="PodGroupScheduled", status="True"),
        )
        await GroupWriter(c).write_status(ref, GroupStatus(written))
        (asked,) = server.asked
    assert asked.path == f"{ROOT}/{version}/namespaces/ns/{kind.lower()}s/g/status"
    conditions = msgspec.json.decode(asked.body)["status"]["conditions"]
    assert [one["type"] for one in conditions if "status" in one] == ["DisruptionTarget", name]
    # That of an earlier version would stay, because conditions are merged by type.
    assert [one["type"] for one in conditions if one.get("$patch") == "delete"] == other
