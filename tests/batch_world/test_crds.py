"""``asched crds`` prints installable definitions of all watched resources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from typer.testing import CliRunner

from asched.apiserver.auth import ADMIN, SCHEDULER
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from asched.cli.config import CRD_GROUPS
from asched.cli.main import app
from asched.model.resources import GroupResource
from tests.apiserver.kubectl import Kubectl, needs_kubectl
from tests.batch_world.manifests import definitions, install_crds

runner = CliRunner()


def printed(*args: str) -> str:
    result = runner.invoke(app, ["crds", *args], prog_name="asched")
    assert result.exit_code == 0, result.output
    return result.stdout


def custom() -> Iterator[GroupResource]:
    return (resource for resource in GroupResource if resource.value.group in CRD_GROUPS)


def test_crds_prints_selected_groups() -> None:
    names = [d["metadata"]["name"] for d in yaml.safe_load_all(printed())]
    assert names == [
        f"{plural}.{group}" for group in CRD_GROUPS for plural in ("podgroups", "queues")
    ]
    own = printed("--group", "scheduling.volcano.sh")
    assert [*yaml.safe_load_all(own)] == definitions("scheduling.volcano.sh")


def test_unknown_group_is_named() -> None:
    result = runner.invoke(app, ["crds", "--group", "batch.example.com"], prog_name="asched")
    assert result.exit_code == 2
    assert "no API group 'batch.example.com'" in result.stderr


def test_definitions_serve_the_watched_versions() -> None:
    cluster = EmbeddedCluster(seed=1)
    install_crds(cluster)
    for resource in custom():
        served = cluster.api.registry.find(
            resource.value.group, resource.value.version, resource.plural
        )
        assert served is not None, resource
        assert served.kind == resource.kind
        assert served.namespaced is resource.value.namespaced
        assert served.status, "a status is written apart from the rest"


@needs_kubectl
async def test_kubectl_apply_is_idempotent(tmp_path: Path) -> None:
    tokens = {"admin-token": ADMIN, "scheduler-token": SCHEDULER}
    async with ApiServer(EmbeddedCluster(seed=1), tokens=tokens).run() as server:
        kubectl = Kubectl(server, tmp_path)
        created = await kubectl.run("apply", "-f", "-", stdin=printed())
        assert created.count(" created") == 6
        again = await kubectl.run("apply", "-f", "-", stdin=printed())
        assert again.count(" unchanged") == 6
        queue = (
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\n"
            "metadata: {name: gold}\nspec: {weight: 3}\n"
        )
        await kubectl.run("apply", "-f", "-", stdin=queue)
        weight = await kubectl.run(
            "get", "queues.scheduling.volcano.sh", "gold", "-o", "jsonpath={.spec.weight}"
        )
        assert weight == "3"
