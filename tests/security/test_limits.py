"""Nothing that comes from outside is decoded without an end."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from asched.batch.registry import SessionRegistry
from asched.config import yaml as config_yaml
from asched.config.batch import load_conf
from asched.config.file import ConfigFileError, load
from asched.config.kube_scheduler import Extender
from asched.config.registry import PluginRegistry
from asched.config.settings import BatchSettings, HealthSettings
from asched.config.yaml import CONFIG_LIMIT_BYTES, read_limited
from asched.daemon.telemetry.health import Health
from asched.journal import archive, codec
from asched.journal.archive import read_segment
from asched.journal.chain import Segment
from asched.journal.codec import CODEC
from asched.journal.errors import JournalCorruptError, RecordError
from asched.kube import extenders, response_parser, streams, tape
from asched.kube.connection import find_credentials
from asched.kube.decoding import LINE_LIMIT_BYTES, LineSplitter
from asched.kube.errors import KubeConfigError, NoResponseError
from asched.kube.extenders import ExtenderError, open_extenders
from asched.kube.response_parser import MalformedHttpError, ResponseParser
from asched.kube.tape import Tape, TapeError
from asched.kube.timing import SystemClock
from asched.state import checkpoint
from asched.state.checkpoint import CheckpointError, checkpoint_of, restore
from asched.state.cluster import ClusterState
from asched.state.records import TurnStarted
from tests.extenders.service import serving
from tests.extenders.test_tls import NODES, POD
from tests.kube.harness import ManualClock, client_for

TOO_LARGE = "x" * (CONFIG_LIMIT_BYTES + 1)


# -- files ------------------------------------------------------------------------------------


def test_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# " + TOO_LARGE)
    with pytest.raises(ConfigFileError) as error:
        load(path, PluginRegistry.discover())
    assert error.value.lines == (f"{path}: cannot be read: larger than 8388608 bytes",)


def test_configuration_with_expanding_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_yaml, "MAX_NODES", 2000)
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 5)]
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(["a0: &a0 [0]", *lines]))
    with pytest.raises(ConfigFileError, match="once its aliases are expanded"):
        load(path, PluginRegistry.discover())


def test_kube_batch_configuration(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text("# " + TOO_LARGE)
    found = load_conf(BatchSettings(conf=str(path)), SessionRegistry.discover())
    assert "larger than 8388608 bytes" in found.fault


async def test_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("# " + TOO_LARGE)
    with pytest.raises(KubeConfigError, match="larger than 8388608 bytes"):
        await find_credentials(path, None).load(SystemClock().utc())


def test_files_without_size_are_limited() -> None:
    with pytest.raises(OSError, match="larger than 100 bytes"):
        read_limited(Path("/dev/zero"), 100)


# -- the API server and extenders -------------------------------------------------------------


def test_oversized_watch_line_is_skipped() -> None:
    lines = LineSplitter(limit_bytes=10)
    assert lines.feed(b"x" * 11) == []
    assert lines.feed(b"x" * 1000 + b"\nshort\n") == [b"short"]
    assert lines.overlong == 1
    assert LINE_LIMIT_BYTES == 16 * 1024 * 1024


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + b"x" * 200,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n" + b"x" * 200,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200,
    ],
    ids=["length", "chunks", "to the end"],
)
def test_response_of_api_server(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(response_parser, "BODY_LIMIT_BYTES", 100)
    with pytest.raises(MalformedHttpError, match="the body is too large"):
        ResponseParser().feed(answer)


def test_response_head() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 9_000)
    with pytest.raises(MalformedHttpError, match="without end"):
        parser.feed(b"X: y\r\n" * 9_000)


async def test_error_response_of_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BODY_LIMIT_BYTES", 1000)

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=500, body=b"x" * 2000)

    app = web.Application()
    app.router.add_get("/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with client_for(url, ManualClock()) as client:
            with pytest.raises(NoResponseError, match="too large"):
                async with client.stream("/api/v1/pods", {"watch": "1"}, timeout_s=30):
                    pass
    finally:
        await runner.cleanup()


async def test_response_of_extender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extenders, "MAX_RESPONSE_BYTES", 100)
    async with serving() as service:
        service.answer("filter", lambda question: b" " * 101)
        extender = Extender(service.url, filter_verb="filter", node_cache_capable=True)
        async with open_extenders([extender]) as (opened,):
            with pytest.raises(ExtenderError, match="the response is over 100 bytes"):
                await opened.filter(POD, NODES)


# -- the journal ------------------------------------------------------------------------------


def test_record(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = CODEC.encode(TurnStarted(1))
    monkeypatch.setattr(codec, "RECORD_LIMIT_CHARACTERS", len(encoded.payload))
    CODEC.decode(1, encoded.kind, encoded.version, encoded.subject, encoded.payload)
    with pytest.raises(
        RecordError, match=r"record 7 \(TurnStarted\) has \d+ characters, which exceeds"
    ):
        CODEC.decode(7, encoded.kind, encoded.version, encoded.subject, encoded.payload + " ")


def test_line_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LINE_LIMIT_BYTES", 1000)
    path = tmp_path / "segment.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"format":"asched-segment-1"}\n' + b" " * 10_000_000))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    segment = Segment(1, 1, 1, 1, 1, "", "", path.name, digest, 0)
    with pytest.raises(JournalCorruptError, match="a line that is too long"):
        next(read_segment(tmp_path, segment))


def test_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    load = PluginRegistry.discover().load
    blob = checkpoint_of(ClusterState())
    restore(blob, load)
    head, _, packed = blob.partition(b"\n")
    bomb = head + b"\n" + zlib.compress(zlib.decompress(packed) + bytes(1_000_000))
    monkeypatch.setattr(checkpoint, "SIZE_LIMIT_BYTES", 100_000)
    with pytest.raises(CheckpointError, match="it has more than 100000 bytes"):
        restore(bomb, load)
    with pytest.raises(CheckpointError, match="it is truncated"):
        restore(blob[:-4], load)


def test_line_of_a_tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "LINE_LIMIT_BYTES", 1000)
    path = tmp_path / "tape.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(TapeError, match="a line of more than 1000 bytes"):
        list(Tape(path))


# -- health -----------------------------------------------------------------------------------


async def test_health_requests() -> None:
    health = Health(CollectorRegistry())
    async with (
        health.serving(HealthSettings("127.0.0.1:0")),
        aiohttp.ClientSession(f"http://{health.address}") as session,
    ):
        async with session.get("/livez", headers={"X": "x" * 100_000}) as answer:
            assert answer.status == 400
        async with session.get("/livez?" + "x" * 100_000) as answer:
            assert answer.status == 400
        async with session.post("/livez", data=b"x" * 100_000) as answer:
            assert answer.status == 405
        async with session.get("/livez") as answer:
            assert answer.status == 200
