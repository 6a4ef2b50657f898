"""docs/explanation/security.md: permissions, ports, limits and TLS verification."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest
from sqlalchemy import make_url

from asched.cel.parser import MAX_EXPRESSION_BYTES, MAX_NESTING
from asched.cel.values import COST_LIMIT, MAX_STEPS
from asched.config.kube_scheduler import Extender, ExtenderTLS
from asched.config.settings import AschedConfiguration
from asched.config.yaml import CONFIG_LIMIT_BYTES
from asched.daemon.telemetry.responder import CONNECTION_TIMEOUT_S, MAX_CONNECTIONS
from asched.journal.archive import LINE_LIMIT_BYTES as ARCHIVE_LIMIT
from asched.journal.codec import RECORD_LIMIT_CHARACTERS
from asched.journal.postgres import tls_arguments
from asched.kube import decoding, exec_plugin, extenders, response_parser, tape
from asched.kube.connection import find_credentials
from asched.kube.extenders import tls_settings
from asched.kube.timing import SystemClock
from asched.model import nesting
from asched.state.checkpoint import SIZE_LIMIT_BYTES
from tests.daemon.processes import commands, running
from tests.daemon.test_run_command import stopped, until_logged
from tests.daemon.world import world
from tests.helm.chart import ROOT, VALUE_SETS, only, permissions, rendered

PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()
MIB = 1024 * 1024

needs_proc = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="open sockets are read from Linux's /proc"
)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table with this heading."""
    (table,) = re.findall(rf"^ *\| {heading} .*\n((?: *\|.*\n)+)", PAGE, re.MULTILINE)
    return [
        [c.strip() for c in line.strip().strip("|").split(" | ")] for line in table.splitlines()[1:]
    ]


@pytest.mark.parametrize(
    ("case", "values"), [("always", "defaults"), ("gangs", "gangs"), ("batch", "batch")]
)
def test_permissions_equal_cluster_role(case: str, values: str) -> None:
    documented = {
        ("" if group == "core" else group, resource, verb)
        for groups, resources, verbs, when, _ in rows("API group")
        if "always" in when or case in when
        for group in groups.split(", ")
        for resource in resources.split(", ")
        for verb in verbs.split(", ")
    }
    assert documented == permissions(rendered(VALUE_SETS[values]))


def test_permissions_of_replicas_equal_role() -> None:
    documented = {
        (group, resource, verb)
        for group, resource, verbs, _ in rows("in its namespace")
        for verb in verbs.split(", ")
    }
    objects = rendered(VALUE_SETS["replicas"])
    assert documented == {
        (group, resource, verb)
        for rule in only(objects, "Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert permissions(objects) == permissions(rendered(VALUE_SETS["defaults"]))
    assert not any(each["kind"] == "Role" for each in rendered(VALUE_SETS["defaults"]))


def test_each_permission_has_an_impact() -> None:
    assert all(gives for *_, gives in (*rows("API group"), *rows("in its namespace")))


def test_limits_equal_those_in_code() -> None:
    limits = {what: limit for what, limit, _ in rows("what")}
    documented = {what: re.findall(r"(\d+) (Gi|Mi|Ki)", limit) for what, limit in limits.items()}
    size = {"Gi": 1024 * MIB, "Mi": MIB, "Ki": 1024}
    documented_bytes = [[int(n) * size[unit] for n, unit in found] for found in documented.values()]
    assert tape.LINE_LIMIT_BYTES == ARCHIVE_LIMIT
    assert documented_bytes == [
        [response_parser.BODY_LIMIT_BYTES, response_parser.HEAD_LIMIT_BYTES],
        [],
        [decoding.LINE_LIMIT_BYTES],
        [extenders.MAX_RESPONSE_BYTES],
        [CONFIG_LIMIT_BYTES],
        [RECORD_LIMIT_CHARACTERS],
        [ARCHIVE_LIMIT],
        [SIZE_LIMIT_BYTES],
        [8 * 1024],
        [],
        [MAX_EXPRESSION_BYTES],
        [],
        [],
        [exec_plugin.OUTPUT_LIMIT_BYTES],
    ]
    assert limits["nesting of an object"].startswith(f"{nesting.MAX_DEPTH} ")
    assert limits["a CEL expression that selects devices"].endswith(f", {MAX_NESTING} levels")
    evaluation = limits["the evaluation of a CEL expression for a device"]
    assert evaluation.startswith(f"{COST_LIMIT:,} cost units")
    assert f" {MAX_STEPS:,} steps" in evaluation
    connections = limits["connections for health"]
    assert connections.startswith(f"{MAX_CONNECTIONS}, {CONNECTION_TIMEOUT_S:g} s")


# -- what listens -----------------------------------------------------------------------------


def listening(pid: int) -> list[str]:
    """Hexadecimal addresses, as the kernel writes them, that a process accepts connections at."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if (target := str(descriptor.readlink())).startswith("socket:["):
            sockets.add(target.removeprefix("socket:[").rstrip("]"))
    found = []
    for family in ("tcp", "tcp6"):
        table = Path(f"/proc/{pid}/net/{family}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.append(fields[1])
    return found


@needs_proc
async def test_nothing_listens_beyond_loopback_by_default(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=1) as w, commands(tmp_path) as made:
        options = ("--kubeconfig", str(w.kubeconfig), "--journal", str(w.journal))
        async with running(made, "run", *options) as command:
            await until_logged(command, "caches synced")
            (address,) = listening(command.pid)
            assert address.startswith("0100007F:"), address
            assert await stopped(made, command) == 0


def test_default_address_is_on_the_page() -> None:
    assert AschedConfiguration().health.address == "127.0.0.1:10251"
    assert "`127.0.0.1:10251`" in PAGE


# -- what is verified -------------------------------------------------------------------------


def verifies(context: ssl.SSLContext) -> bool:
    return context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9" EXTRA}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


@pytest.mark.parametrize(
    ("extra", "verified"), [("", True), (", insecure-skip-tls-verify: true", False)]
)
async def test_api_server(tmp_path: Path, extra: str, verified: bool) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG.replace(" EXTRA", extra))
    found = await find_credentials(path, None).load(SystemClock().utc())
    assert found.tls is not None
    assert verifies(found.tls) is verified


@pytest.mark.parametrize("enable_https", [True, False])
@pytest.mark.parametrize(
    ("tls", "verified"),
    [(None, True), (ExtenderTLS(server_name="x"), True), (ExtenderTLS(insecure=True), False)],
)
def test_extenders(tls: ExtenderTLS | None, enable_https: bool, verified: bool) -> None:
    extender = Extender("https://extender.test", tls_config=tls, enable_https=enable_https)
    settings = tls_settings(extender)
    # Without settings of its own the HTTP client uses its default, which verifies.
    assert (settings is None or verifies(settings.context)) is verified


@pytest.mark.parametrize(
    ("url", "environ", "verified"),
    [
        ("//u:p@db.example.com/asched", {}, True),
        ("//u:p@10.0.0.7:5432/asched", {}, True),
        ("//u:p@db.example.com/asched?ssl=disable", {}, None),
        ("//u:p@127.0.0.1/asched", {}, None),
        ("//u:p@127.0.0.1/asched", {"PGHOST": "db.example.com"}, None),
        ("//u:p@[::1]/asched", {}, None),
        ("///asched?host=/run/postgresql", {}, None),
        ("///asched?host=db.example.com", {}, True),
        ("//u:p@localhost/asched?host=db.example.com", {}, True),
        ("///asched?host=127.0.0.1:5432&host=db.example.com:5432", {}, True),
        ("///asched?host=127.0.0.1,db.example.com&port=1,2", {}, True),
        ("//u:p@localhost.example.com/asched", {}, True),
        ("//u:p@/asched", {}, None),
        ("//u:p@/asched", {"PGHOST": "db.example.com"}, True),
        ("//u:p@/asched", {"PGHOST": "/run/postgresql,db.example.com"}, True),
        ("//u:p@/asched", {"PGHOST": "/run/postgresql"}, None),
        ("//u:p@/asched", {"PGSERVICE": "journal"}, True),
        ("//u:p@/asched?service=journal", {}, True),
        ("//u:p@/asched?dsn=postgresql://db.example.com/x", {}, True),
    ],
)
def test_postgresql(url: str, environ: dict[str, str], verified: bool | None) -> None:
    """None: what the URL says, or a connection that does not leave the machine."""
    parsed = make_url(f"postgresql+asyncpg:{url}")
    _, settings = parsed.get_dialect()().create_connect_args(parsed)
    context = tls_arguments(settings, environ).get("ssl")
    assert (None if context is None else verifies(context)) is verified
