"""``kubectl asched``, with kubectl and the embedded API server."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.http import ApiServer
from tests.apiserver.kubectl import KUBECTL, Kubectl, needs_kubectl
from tests.apiserver.objects import pod
from tests.ui.serving import invoke

pytestmark = needs_kubectl
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PLUGIN = [sys.executable, "-m", "asched.cli.kubectl_asched"]


@pytest.fixture
def cluster() -> EmbeddedCluster:
    return EmbeddedCluster()


@pytest.fixture
async def kubectl(cluster: EmbeddedCluster, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """An ``exec`` of this kubectl only prints its arguments: no container runs here."""
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "kubectl"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" exec "*) echo "$@"; exit 3;; esac\nexec {KUBECTL} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    async with ApiServer(cluster).run() as server:
        yield Kubectl(server, tmp_path)


async def asked(kubectl: Kubectl, *words: str, **environment: str) -> tuple[int, str, str]:
    programs = str(kubectl.home / "programs")
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = await anyio.run_process(
        [*PLUGIN, *words],
        check=False,
        env={
            **inherited,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(kubectl.home),
            "KUBECONFIG": str(kubectl.config),
            **environment,
        },
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def daemon(cluster: EmbeddedCluster, name: str) -> None:
    made = pod(name, namespace="kube-system")
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "asched"}
    cluster.create("pods", made)
    running = {"status": {"phase": "Running"}}
    cluster.patch("pods", name, running, namespace="kube-system", subresource="status")


async def test_question_is_asked_in_the_container_of_the_daemon(
    kubectl: Kubectl, cluster: EmbeddedCluster
) -> None:
    daemon(cluster, "asched-0")
    code, printed, said = await asked(kubectl, "why", "report", "--node", "n1")
    assert (code, said) == (3, "")
    assert printed.split() == [
        *("exec", "--namespace", "kube-system", "asched-0", "--container", "asched", "--"),
        *("asched", "explain", "default/report", "--node", "n1"),
    ]
    known = (await kubectl.run("config", "current-context")).strip()
    _, printed, _ = await asked(kubectl, "history", "report", "-n", "team", "--context", known)
    assert printed.split()[:2] == ["--context", known]
    assert printed.split()[-3:] == ["asched", "history", "team/report"]


async def test_of_several_replicas_the_leader_is_asked(
    kubectl: Kubectl, cluster: EmbeddedCluster
) -> None:
    for name in ("asched-a", "asched-b", "asched-c"):
        daemon(cluster, name)
    lease = {
        "metadata": {"name": "asched", "namespace": "kube-system"},
        "spec": {"holderIdentity": "asched-b_0f2c"},
    }
    cluster.create("leases", lease)
    _, printed, _ = await asked(kubectl, "why", "team/report")
    assert "kube-system asched-b --container" in printed


async def test_without_a_daemon_the_journal_has_to_be_named(kubectl: Kubectl) -> None:
    code, printed, said = await asked(kubectl, "why", "report")
    assert (code, printed) == (2, "")
    assert said == (
        "asched: no running pod has the label app.kubernetes.io/name=asched; name the journal with"
        " --journal or ASCHED_JOURNAL\n"
    )


@pytest.mark.parametrize("words", [("--journal", "gone.db"), ()])
async def test_journal_is_read_here_if_it_is_named(
    kubectl: Kubectl, words: tuple[str, ...]
) -> None:
    named = {} if words else {"ASCHED_JOURNAL": "gone.db"}
    code, printed, said = await asked(kubectl, "why", "report", *words, **named)
    assert (code, printed) == (2, "")
    assert said.startswith("asched: ")
    assert "gone.db" in said


async def test_journal_needs_no_cluster(kubectl: Kubectl, tmp_path: Path) -> None:
    scenario, journal = str(EXAMPLES / "scenario.yaml"), str(tmp_path / "journal.db")
    simulate = partial(invoke, "simulate", scenario, "--journal", journal)
    assert (await anyio.to_thread.run_sync(simulate))[0] == 0
    words = ("why", "report-1", f"--journal={journal}")
    code, printed, said = await asked(kubectl, *words, KUBECONFIG="/nonexistent")
    assert (code, said) == (0, "")
    assert printed.startswith("pod jobs/report-1, ")


async def test_mistakes_are_one_line(kubectl: Kubectl) -> None:
    code, _, said = await asked(kubectl, "why", "report", "--context", "nowhere")
    assert (code, len(said.splitlines())) == (1, 1)
    assert said.startswith("asched: kubectl config: error:")
    code, _, said = await asked(kubectl, "why", "team/report", PATH="/nonexistent")
    assert (code, said) == (2, "asched: kubectl is not in the PATH\n")
