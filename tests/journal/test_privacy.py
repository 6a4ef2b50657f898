"""What the journal must not hold never gets there: secrets are put wherever an object has room for
one, scheduled by a real daemon, and looked for in the bytes of the database's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asched.journal import open_journal
from asched.state.records import Bound, Rejected
from tests.daemon.world import World, world

MARK = "s3cr3t"
"""Part of every secret, and of no name, label, image or other data that scheduling reads."""

Object = dict[str, Any]


def secret(where: str) -> str:
    return f"{MARK}-{where}"


def container(name: str) -> Object:
    probe = {
        "httpGet": {
            "path": f"/{secret('probe-path')}",
            "port": 80,
            "httpHeaders": [{"name": "Authorization", "value": secret("probe-header")}],
        }
    }
    return {
        "name": name,
        "image": "app",
        "command": ["run", secret("command")],
        "args": [f"--password={secret('args')}"],
        "workingDir": f"/{secret('working-dir')}",
        "env": [
            {"name": "PASSWORD", "value": secret("env-value")},
            {"name": secret("env-name"), "value": "x"},
            {
                "name": "TOKEN",
                "valueFrom": {
                    "secretKeyRef": {"name": secret("env-ref"), "key": secret("env-key")}
                },
            },
        ],
        "envFrom": [{"secretRef": {"name": secret("env-from")}}],
        "volumeMounts": [{"name": "keys", "mountPath": f"/{secret('mount-path')}"}],
        "livenessProbe": probe,
        "readinessProbe": {"exec": {"command": [secret("probe-command")]}},
        "lifecycle": {"preStop": {"exec": {"command": [secret("lifecycle")]}}},
        "resources": {"requests": {"cpu": "100m"}},
    }


def annotated(name: str, **labels: str) -> Object:
    return {
        "name": name,
        "labels": labels,
        "annotations": {
            "example.com/token": secret("annotation"),
            f"example.com/{secret('annotation-key')}": "x",
            "kubectl.kubernetes.io/last-applied-configuration": f'{{"x":"{secret("applied")}"}}',
        },
    }


def pod(name: str, **spec: Any) -> Object:
    return {
        "metadata": annotated(name, app="web"),
        "spec": {
            "containers": [container("app"), container("sidecar")],
            "initContainers": [container("init")],
            "imagePullSecrets": [{"name": secret("pull")}],
            "volumes": [
                {"name": "keys", "secret": {"secretName": secret("volume-secret")}},
                {"name": "settings", "configMap": {"name": secret("volume-config")}},
                {
                    "name": "all",
                    "projected": {
                        "sources": [
                            {"secret": {"name": secret("projected")}},
                            {"serviceAccountToken": {"path": secret("token-path")}},
                        ]
                    },
                },
                {
                    "name": "inline",
                    "csi": {
                        "driver": "csi.example.com",
                        "volumeAttributes": {"password": secret("csi-attribute")},
                        "nodePublishSecretRef": {"name": secret("csi-secret")},
                    },
                },
            ],
            **spec,
        },
    }


def fill(w: World) -> None:
    cluster = w.cluster
    cluster.patch("nodes", "n0", {"metadata": {"annotations": annotated("n0")["annotations"]}})
    cluster.create("pods", pod("fits"))
    cluster.create("pods", pod("does-not-fit", nodeSelector={"disk": "ssd"}))


async def test_journal_contains_no_secret(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w:
        fill(w)
        async with w.daemon():
            await w.until(lambda: bool(w.node_of("fits") and w.message("does-not-fit")))
            changed = {"annotations": {"example.com/token": secret("new")}, "labels": {"app": "x"}}
            w.cluster.patch("pods", "fits", {"metadata": changed}, namespace="default")
            w.cluster.delete("pods", "fits", namespace="default")
            w.cluster.create("pods", pod("after"))
            await w.until(lambda: bool(w.node_of("after")))
            written = files(w.journal)
        async with open_journal(str(w.journal), read_only=True) as store:
            kinds = {type(stored.record) async for stored in store.read()}
        assert {Bound, Rejected} <= kinds
    for content in (*written.values(), *files(w.journal).values()):
        assert MARK.encode() not in content
    # The searched files contain the pods.
    everything = b"".join(written.values())
    assert b"does-not-fit" in everything
    assert b"csi.example.com" in everything


def files(journal: Path) -> dict[str, bytes]:
    """The bytes of the database's files, including the write-ahead log."""
    return {p.name: p.read_bytes() for p in journal.parent.glob(f"{journal.name}*")}


def test_secrets_exist_in_cluster() -> None:
    def marked(value: object) -> int:
        match value:
            case dict():
                return sum(map(marked, [*value, *value.values()]))
            case list():
                return sum(map(marked, value))
            case str():
                return MARK in value
        return 0

    assert marked(pod("p")) > 40
