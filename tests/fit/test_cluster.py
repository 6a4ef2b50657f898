"""``asched fit --cluster``: the embedded API server over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon.processes import commands
from tests.daemon.world import World, world

POD = """
apiVersion: v1
kind: Pod
metadata: {name: new}
spec:
  containers:
    - {name: c, image: app, resources: {requests: {cpu: %s}}}
"""


async def fit(w: World, cpu: str, *arguments: str) -> tuple[int, str]:
    """The exit code and the output."""
    manifest = w.folder / "pod.yaml"
    manifest.write_text(POD % cpu)
    async with commands(w.folder) as started:
        command = await started.start(
            "fit", str(manifest), "--cluster", "--kubeconfig", str(w.kubeconfig), *arguments
        )
        return await started.ended(command), command.output


async def test_pod_is_decided_on_the_cluster(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        running = {"containers": [{"name": "c", "image": "app"}], "nodeName": "n0"}
        running["containers"][0]["resources"] = {"requests": {"cpu": "3"}}  # type: ignore[index]
        w.cluster.create("pods", {"metadata": {"name": "old"}, "spec": running})
        code, out = await fit(w, "2", "-o", "json")
        assert code == 0, out
        assert json.loads(out)["nodes"] == ["n1"]
        assert [pod["metadata"]["name"] for pod in w.cluster.list("pods")] == ["old"]


async def test_pod_that_does_not_fit(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=2, cpu="4") as w:
        code, out = await fit(w, "5")
        assert code == 1
        assert "0/2 nodes are available: 2 Insufficient cpu" in out
        assert "in the cluster" in out
        assert not (w.folder / "asched.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seq", "3"), "--at and --seq are of a journal"),
        (("--estimate",), "--estimate needs the history in a journal"),
    ],
)
async def test_options_of_a_journal(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    async with world(tmp_path, nodes=1, cpu="4") as w:
        code, out = await fit(w, "1", *arguments)
        assert code == 2
        assert message in out
