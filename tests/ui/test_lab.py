"""The what-if lab: what it reports is what ``asched diff`` and ``asched simulate`` report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asched.pricing.prices import parse_prices
from asched.ui.api import PREFIX
from asched.ui.lab.forgery import TOKEN_HEADER
from asched.ui.lab.results import ResultStore
from asched.ui.lab.runs import LabSettings, start_worker
from tests.ui.forked_lab import running
from tests.ui.serving import Client, cli, ui_on

PACKING = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - pluginConfig:
      - name: NodeResourcesFit
        args: {scoringStrategy: {type: MostAllocated}}
"""
SCENARIO = """\
apiVersion: asched.dev/v1
kind: Scenario
duration: 30m
nodes:
  - {name: worker, count: 2, allocatable: {cpu: "4", memory: 8Gi, pods: "20"}}
pods:
  - name: job
    count: 12
    arrival: {every: 1m}
    lifetime: {fixed: 5m}
    template:
      spec:
        containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
"""
PRICES = """\
apiVersion: asched.dev/v1
kind: Prices
currency: EUR
resources: {cpu: 0.03, memory: 0.004}
nodes:
  - {labels: {pool: spot}, perHour: 0.05}
waits:
  - {perHour: 2}
"""
ENDLESS = SCENARIO.replace("count: 12", "count: 400000").replace("every: 1m", "every: 1ms")


@pytest.fixture
def settings(demo_journal: str, tmp_path: Path) -> LabSettings:
    return LabSettings(demo_journal, tmp_path / "results")


class LabClient:
    """Uses the lab as a program does."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session = client.session
        self.token = ""

    async def begin(self) -> LabClient:
        await self.client.caught_up()
        self.token = (await self.client.get("/lab"))["formToken"]
        return self

    async def post(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        sent = {TOKEN_HEADER: self.token, **headers}
        async with self.session.post(PREFIX + path, json=body, headers=sent) as response:
            return response.status, await response.json()

    async def start(self, **form: str) -> str:
        status, run = await self.post("/lab/runs", {k.rstrip("_"): v for k, v in form.items()})
        assert status == 200, run
        found: str = run["id"]
        return found

    async def ended(self, run_id: str) -> dict[str, Any]:
        async with asyncio.timeout(90):
            while True:
                found: dict[str, Any] = await self.client.get(f"/lab/runs/{run_id}")
                if found["state"] not in ("waiting", "running"):
                    return found
                await asyncio.sleep(0.05)

    async def running(self, run_id: str) -> dict[str, Any]:
        """The run once its worker has reported something."""
        async with asyncio.timeout(60):
            while True:
                found: dict[str, Any] = await self.client.get(f"/lab/runs/{run_id}")
                if found["activity"] not in ("", "starting"):
                    return found
                await asyncio.sleep(0.02)

    async def result(self, **form: str) -> dict[str, Any]:
        run_id = await self.start(**form)
        run = await self.ended(run_id)
        assert run["state"] == "finished", run
        found: dict[str, Any] = await self.client.get(f"/lab/results/{run_id}")
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def idle_lab(
    recorded_demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LabClient]:
    """One server for tests that start no run."""
    settings = LabSettings(str(recorded_demo), tmp_path_factory.mktemp("results"))
    async with ui_on(settings.journal_url, lab=settings) as client:
        yield await LabClient(client).begin()


def without_names(report: dict[str, Any]) -> dict[str, Any]:
    """The report without the names of the runs, which contain the name of a file."""
    runs = {
        role: {k: v for k, v in report[role].items() if k != "name"}
        for role in ("baseline", "candidate")
    }
    return {**report, **runs}


async def test_result_is_that_of_the_command(settings: LabSettings, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(PACKING)
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        middle = (await client.head()) // 2
        node = (await client.get("/cluster"))["nodes"][0]["name"]
        found = await lab.result(
            configuration=PACKING, plugins="NodeAffinity=3", addNodes=f"{node}=2", from_=str(middle)
        )
        whole = await lab.result(plugins="NodeResourcesFit=5")
    request = found["request"]
    options = ("--journal", settings.journal_url, "--since", request["since"])
    printed = await cli(
        "diff", *options, "--until", request["until"], "--config", str(file),
        "--plugins", "NodeAffinity=3", "--add-nodes", f"{node}=2",
    )  # fmt: skip
    assert without_names(found["report"]) == without_names(printed)
    assert found["report"]["candidate"]["name"] == (
        f"edited configuration with NodeAffinity=3, 2 more like {node}"
    )
    printed = await cli(
        "diff", "--journal", settings.journal_url, "--plugins", "NodeResourcesFit=5"
    )
    assert whole["report"] == printed


async def test_scenario_is_that_of_the_command(settings: LabSettings, tmp_path: Path) -> None:
    file, scenario = tmp_path / "new.yaml", tmp_path / "scenario.yaml"
    file.write_text(PACKING)
    scenario.write_text(SCENARIO)
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        found = await lab.result(source="scenario", scenario=SCENARIO, configuration=PACKING)
    report = found["report"]
    assert report["recorded"] is None
    for role, options in (("baseline", ()), ("candidate", ("--config", str(file)))):
        printed = (await cli("simulate", str(scenario), *options))["run"]
        assert {**report[role], "name": ""} == {**printed, "name": ""}


async def used_prices(client: Client) -> dict[str, str]:
    """By result."""
    return {one["id"]: one["prices"] for one in (await client.get("/lab"))["results"]}


async def test_result_has_costs_of_the_command(settings: LabSettings, tmp_path: Path) -> None:
    file, scenario = tmp_path / "prices.yaml", tmp_path / "scenario.yaml"
    file.write_text(PRICES)
    scenario.write_text(SCENARIO)
    ids: list[str] = []
    for prices in (PRICES.replace("0.03", "0.3"), PRICES):
        given = parse_prices(prices, "prices")
        async with ui_on(settings.journal_url, lab=settings, prices=given) as client:
            lab = await LabClient(client).begin()
            ids.append(await lab.start(source="scenario", scenario=SCENARIO))
            if prices == PRICES:
                assert (await lab.ended(ids[1]))["state"] == "finished"
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        ids.append(await lab.start(source="scenario", scenario=SCENARIO))
        assert (await lab.ended(ids[2]))["state"] == "finished"
        found = await client.get(f"/lab/results/{ids[1]}")
        assert await used_prices(client) == {ids[1]: "other", ids[2]: "current"}
        async with client.session.get(f"/lab/results/{ids[1]}") as response:
            text = await response.text()
        async with client.session.get("/lab") as response:
            assert (await response.text()).count("other prices</span>") == 1
    async with ui_on(settings.journal_url, lab=settings, prices=given) as client:
        await client.caught_up()
        assert await used_prices(client) == {ids[1]: "current", ids[2]: "none"}
        async with client.session.get("/lab") as response:
            assert (await response.text()).count("without costs</span>") == 1
    assert len(set(ids)) == 3  # a result belongs to its prices
    costs = found["report"]["candidate"]["figures"]["costs"]
    printed = await cli("simulate", str(scenario), "--prices", str(file))
    assert costs == printed["run"]["figures"]["costs"]
    assert costs["nodes"] > costs["idle"] > 0
    assert "cost of nodes (EUR)" in text
    assert "asched simulate scenario.yaml --prices prices.yaml" in text
    shown = unescape(text.partition('<pre id="prices" tabindex="0">')[2].partition("</pre>")[0])
    assert parse_prices(shown, "shown") == parse_prices(PRICES, "prices")


async def test_same_question_has_the_same_address(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        first = await lab.result(plugins="NodeResourcesFit=5")
        assert await lab.start(plugins=" NodeResourcesFit=5 ") == first["id"]
        other = await lab.result(plugins="NodeResourcesFit=6")
        listed = (await client.get("/lab"))["results"]
        assert [one["id"] for one in listed] == [other["id"], first["id"]]
        csv = f"{PREFIX}/lab/results/{first['id']}?format=csv"
        async with client.session.get(csv) as response:
            assert (await response.text()).startswith("figure,baseline,candidate,change\r\n")
    async with ui_on(settings.journal_url, lab=settings) as client:
        assert await client.get(f"/lab/results/{first['id']}") == first
        async with client.session.get(f"/lab/results/{first['id']}") as response:
            assert "NodeResourcesFit=5" in await response.text()


def is_alive(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


async def test_cancel_ends_the_process(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        run_id = await lab.start(source="scenario", scenario=ENDLESS)
        waiting = await lab.start(plugins="NodeResourcesFit=5")
        await lab.running(run_id)
        [worker] = running
        assert (await client.get(f"/lab/runs/{waiting}"))["state"] == "waiting"
        assert (await client.get("/lab"))["runs"][1]["id"] in (run_id, waiting)
        status, run = await lab.post(f"/lab/runs/{run_id}/cancel")
        assert (status, run["state"]) == (200, "cancelled")
        assert not is_alive(worker)
        assert (await lab.ended(waiting))["state"] == "finished"
        async with client.session.get(f"/lab/results/{run_id}") as response:
            assert "The run was cancelled" in await response.text()


async def test_killed_worker_is_a_page_with_one_line(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        run_id = await lab.start(source="scenario", scenario=ENDLESS)
        await lab.running(run_id)
        [worker] = running
        os.kill(worker, signal.SIGKILL)
        run = await lab.ended(run_id)
        assert run["state"] == "failed"
        assert run["error"].startswith("the worker process was ended by SIGKILL; ")
        async with client.session.get(f"/lab/results/{run_id}") as response:
            text = await response.text()
        assert "ended by SIGKILL" in text
        assert "Traceback" not in text
        # The lab goes on, and nothing is left behind.
        await lab.result(plugins="NodeResourcesFit=5")
    assert not [*settings.results_dir.glob("*.partial")]


async def test_stop_of_the_server_ends_the_runs(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        await lab.running(await lab.start(source="scenario", scenario=ENDLESS))
        [worker] = running
    assert not is_alive(worker)


async def test_worker_out_of_memory_says_so(
    settings: LabSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of its own: a forked one has the memory of the imports of all tests."""
    monkeypatch.setattr("asched.ui.lab.runs.start_worker", start_worker)
    small = settings._replace(memory_bytes=150 << 20)
    async with ui_on(settings.journal_url, lab=small) as client:
        lab = await LabClient(client).begin()
        run = await lab.ended(await lab.start(source="scenario", scenario=ENDLESS))
    assert run["state"] == "failed"
    assert run["error"].startswith("the comparison needs more memory than 150 MiB: ")


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"configuration": "kind: Pod"}, "configuration:1: document 1: kind: unknown value"),
        ({"configuration": "a: [1"}, "configuration:1: not valid YAML: "),
        ({"configuration": "a: &x [*x]"}, "configuration:1: not valid YAML: "),
        ({"configuration": "!!python/object/apply:os.system [id]"}, "configuration:1: "),
        ({"configuration": "x" * 70_000}, "configuration: longer than 65,536 characters"),
        (
            {"configuration": "{apiVersion: asched.dev/v1, kind: AschedConfiguration,"
             " batch: [{conf: /etc/passwd}]}"},
            "configuration: batch: conf: files are not read here",
        ),
        ({"source": "scenario"}, "scenario: expected one document of kind Scenario, got 0"),
        (
            {"source": "scenario", "scenario": SCENARIO.replace("count: 2,", "count: x,")},
            "scenario:5: nodes[0].count: ",
        ),
        ({"plugins": "+Absent=x"}, 'plugins: --plugins: invalid weight "x"'),
        ({"addNodes": "n"}, 'addNodes: --add-nodes: invalid item "n"'),
        ({"from": "soon", "plugins": "+GpuShare"}, 'from: "soon" is not a time'),
        ({"from": "2h", "to": "3h", "plugins": "+GpuShare"}, "to: before from"),
        ({"to": "99999999", "plugins": "+GpuShare"}, "there is no record 99999999"),
        ({"unknown": "1"}, "the body is not a form of the lab: "),
        ({"source": "other"}, "the body is not a form of the lab: "),
    ],
)  # fmt: skip
@pytest.mark.asyncio(loop_scope="module")
async def test_bad_form(idle_lab: LabClient, form: dict[str, str], error: str) -> None:
    status, found = await idle_lab.post("/lab/runs", form)
    assert status in (400, 404)
    assert found["error"].startswith(error)
    assert "\n" not in found["error"]


async def test_error_that_only_the_worker_finds(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        run = await lab.ended(await lab.start(removeNodes="<img src=x onerror=alert(1)>"))
        assert run["state"] == "failed"
        assert run["error"].startswith("--remove-nodes: the history has no node ")
        async with client.session.get(f"/lab/results/{run['id']}") as response:
            assert "<img" not in await response.text()


async def test_request_of_another_site_is_rejected(settings: LabSettings) -> None:
    form = {"plugins": "NodeResourcesFit=5"}
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        for headers in (
            {TOKEN_HEADER: "x"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ):
            for path in ("/lab/runs", "/lab/check"):
                status, found = await lab.post(path, form, **headers)
                assert status == 403, (headers, found)
        fields = {**form, "formToken": "wrong"}
        async with client.session.post("/lab/runs", data=fields) as response:
            assert response.status == 403
        async with client.session.get("/lab/runs") as response:
            assert response.status in (404, 405)
        assert (await client.get("/lab"))["runs"] == []
        own = {"Sec-Fetch-Site": "same-origin", "Origin": client.url}
        status, _ = await lab.post("/lab/check", form, **own)
        assert status == 200


async def test_lab_that_is_off(demo_journal: str) -> None:
    async with ui_on(demo_journal) as client:
        await client.caught_up()
        _, error, _ = await client.fails("/lab")
        async with client.session.get("/lab") as response:
            assert "--lab-workers" in await response.text()
    assert error.startswith("the what-if lab is off")


async def test_same_question_at_the_same_time_is_one_run(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        form = {"source": "scenario", "scenario": ENDLESS}
        found = await asyncio.gather(*(lab.start(**form) for _ in range(5)))
        assert len({*found}) == 1
        await lab.running(found[0])
        assert len(running) == 1
        assert len((await client.get("/lab"))["runs"]) == 1


async def test_too_many_runs(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        lab = await LabClient(client).begin()
        for number in range(9):
            await lab.start(source="scenario", scenario=ENDLESS + f"# {number}\n")
        status, found = await lab.post("/lab/runs", {"source": "scenario", "scenario": SCENARIO})
        assert (status, found["error"]) == (503, "9 runs are in progress or wait")


def test_oldest_results_are_removed(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, max_results=2, max_bytes=25)
    ids = [f"{number:024x}" for number in range(4)]
    for number, result_id in enumerate(ids):
        store.partial_path(result_id).write_text("x" * 10)
        store.keep(result_id)
        os.utime(tmp_path / f"{result_id}.json", (number, number))
    assert sorted(file.stem for file in tmp_path.iterdir()) == ids[2:]
    assert store.load(ids[3]) is None
    assert store.listed(None) == []
    store.partial_path(ids[0]).write_text("x" * 30)
    store.keep(ids[0])
    assert [file.stem for file in tmp_path.iterdir()] == [ids[0]]


@pytest.mark.parametrize("name", ["../secret", "x" * 24, "", "0" * 23])
def test_id_is_no_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").write_text("{}")
    store = ResultStore(tmp_path / "results")
    assert store.load(name) is None
    assert not store.has(name)


async def test_api_is_described(settings: LabSettings) -> None:
    async with ui_on(settings.journal_url, lab=settings) as client:
        await client.caught_up()
        document = await client.get("/openapi.json")
        schema = await client.get("/config-schema")
        scenario = await client.get("/config-schema", kind="scenario")
        recorded = await client.get("/lab/configuration")
    run = document["paths"]["/api/v1/lab/runs"]["post"]
    assert run["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/LabForm"
    }
    assert schema == await cli_schema()
    assert "Scenario" in scenario["$defs"]
    assert "NodeResourcesFit" in recorded["text"]


async def cli_schema() -> Any:
    from tests.ui.serving import run_command

    _, out, _ = await run_command("config", "schema")
    return json.loads(out)
