"""``serve_forever``."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import anyio
import pytest
import yaml

from asched.apiserver.http import ApiServer, ServeOptions, TlsFiles, serve_forever
from asched.apiserver.kubelet import KubeletTimings
from asched.kube.connection import connect
from tests.apiserver.objects import pod
from tests.extenders.certificates import CERTIFICATE, KEY, NAME


async def test_serve_runs_pods_until_cancelled(tmp_path: Path) -> None:
    config = tmp_path / "config"
    options = ServeOptions(nodes=3, kubeconfig=config, timings=KubeletTimings(start_s=0.0))
    ready = anyio.Event()
    servers: list[ApiServer] = []

    def on_ready(server: ApiServer) -> None:
        servers.append(server)
        ready.set()

    async def serve() -> None:
        await serve_forever(options, on_ready=on_ready)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            await ready.wait()
            url = yaml.safe_load(config.read_text())["clusters"][0]["cluster"]["server"]
            async with aiohttp.ClientSession(url) as session, session.get("/api/v1/nodes") as found:
                assert len((await found.json())["items"]) == 3
            cluster = servers[0].cluster
            with cluster.watch("pods") as watcher:
                cluster.create("pods", pod("p"))
                cluster.bind("default", "p", "node-0000")
                async for event in watcher:
                    if event.stored.obj["status"]["phase"] == "Running":
                        break
            group.cancel_scope.cancel()


async def test_unwritable_kubeconfig_raises_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await serve_forever(ServeOptions(kubeconfig=tmp_path / "none" / "config"))


async def test_invalid_faults_raise_at_start() -> None:
    with pytest.raises(ValueError, match="'explode' is not a fault"):
        await serve_forever(ServeOptions(faults="explode"))


async def test_https_kubeconfig_trusts_the_certificate(tmp_path: Path) -> None:
    tls = TlsFiles(tmp_path / "certificate.pem", tmp_path / "key.pem")
    tls.certificate.write_text(CERTIFICATE)
    tls.key.write_text(KEY)
    config = tmp_path / "config"
    ready = anyio.Event()
    options = ServeOptions(nodes=3, kubeconfig=config, tls=tls, kubelets=False)

    async def serve() -> None:
        await serve_forever(options, on_ready=lambda server: ready.set())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            await ready.wait()
            written = yaml.safe_load(config.read_text())
            (cluster,) = written["clusters"]
            assert cluster["cluster"]["server"].startswith("https://127.0.0.1:")
            # The certificate of these tests is for a name, which a client then asks for.
            cluster["cluster"]["tls-server-name"] = NAME
            config.write_text(yaml.safe_dump(written))
            async with connect(config, None) as client:
                nodes = await client.request("GET", "/api/v1/nodes")
            assert len(json.loads(nodes)["items"]) == 3
            group.cancel_scope.cancel()


async def test_mismatched_tls_files_are_named(tmp_path: Path) -> None:
    tls = TlsFiles(tmp_path / "certificate.pem", tmp_path / "key.pem")
    tls.certificate.write_text(CERTIFICATE)
    tls.key.write_text("no key")
    with pytest.raises(ValueError, match=r"certificate.pem and .*key.pem are not a certificate"):
        await serve_forever(ServeOptions(tls=tls))
