"""The other views show what the API and the commands answer."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import expect

from asched.journal.opening import open_journal
from asched.model.quantity import NS_PER_S
from asched.state.records import TurnStarted
from tests.journal.test_verification import tamper
from tests.ui.browser.browsing import Chromium, Tab, browsing, tab_on, words
from tests.ui.serving import cli, run_command, ui_on


async def test_overview_shows_the_figures(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open("/")
        points = (await client.get("/overview"))["points"]
        kinds = (await client.get("/journal"))["progress"]["counts"]
        figures = {
            name: await tab.text(f"#figure-{name}")
            for name in ("nodes", "pending", "bound", "rejected")
        }
        assert figures == {
            "nodes": str(points[-1]["nodes"]),
            "pending": str(sum(points[-1]["queues"].values())),
            "bound": str(kinds["bound"]),
            "rejected": str(kinds["rejected"]),
        }
        charts = tab.page.locator("#charts canvas")
        assert await charts.count() == 5
        reasons = await charts.nth(3).get_attribute("aria-label") or ""
        for plugin, pods in points[-1]["pendingByPlugin"].items():
            assert f"{plugin}: last {pods}, " in reasons
        await tab.screenshot("overview")


async def test_overview_follows_a_growing_journal(
    chromium: Chromium, recorded_demo: Path, tmp_path: Path
) -> None:
    journal = str(shutil.copy(recorded_demo, tmp_path / "journal.db"))
    async with browsing(chromium, journal) as (tab, client):
        await tab.open("/")
        head = await client.head()
        await expect(tab.page.locator("#live")).to_contain_text(f"Record {head:,}")
        async with open_journal(journal) as store:
            last = [stored async for stored in store.read(head - 50)][-1]
            later_ns = last.written_at_ns + 5 * NS_PER_S
            await store.claim("test", claimed_at_ns=last.written_at_ns)
            await store.append([TurnStarted(later_ns)], written_at_ns=later_ns)
        await expect(tab.page.locator("#live")).to_contain_text(f"Record {head + 1:,}")
        await expect(tab.page.locator("#overview")).to_have_attribute("data-seq", str(head + 1))


@asynccontextmanager
async def troubled(chromium: Chromium, journal: str) -> AsyncIterator[Tab]:
    """A tab on the overview of a journal that cannot be followed to its end."""
    async with ui_on(journal) as client, tab_on(chromium, client) as tab:
        while not client.view.progress.problem:
            await client.view.changed()
        await tab.open("/")
        yield tab
        assert all("the server responded with a status of" in text for text in tab.problems)


async def test_overview_of_a_damaged_journal_shows_what_is_left(
    chromium: Chromium, recorded_demo: Path, tmp_path: Path
) -> None:
    journal = str(shutil.copy(recorded_demo, tmp_path / "journal.db"))
    await tamper(journal, "UPDATE journal_record SET payload = '{\"' WHERE seq = 100")
    async with troubled(chromium, journal) as tab:
        await expect(tab.page.locator("#overview")).to_have_attribute("data-seq", "99")
        await expect(tab.page.locator("#pending-trouble")).to_contain_text("cannot be decoded")
        await expect(tab.page.locator("#trouble")).to_be_empty()


async def test_overview_without_an_answer_stops_loading(chromium: Chromium, tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    journal.touch()
    async with troubled(chromium, str(journal)) as tab:
        await expect(tab.page.locator("#trouble")).to_contain_text("check --journal, or start")
        await expect(tab.page.locator("#overview")).to_be_hidden()


async def test_overview_of_a_journal_without_records(chromium: Chromium, tmp_path: Path) -> None:
    journal = str(tmp_path / "journal.db")
    async with open_journal(journal):
        pass
    async with browsing(chromium, journal) as (tab, client):
        await client.caught_up()
        await tab.open("/")
        await expect(tab.page.locator("#overview")).to_have_attribute("data-seq", "0")
        await expect(tab.page.locator("#empty")).to_be_visible()
        await tab.open("/cluster")
        await expect(tab.page.locator("#none")).to_be_visible()
        await expect(tab.page.locator("#when")).to_be_hidden()


async def test_search_finds_what_the_api_finds(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open("/search?q=ops")
        found = await client.get("/search", q="ops")
        assert await tab.rows("#results") == [
            [one["kind"], one["name"], one["namespace"], words(one["state"]), str(one["lastSeq"])]
            for one in found["results"]
        ]
        await tab.page.locator("#search").fill("no-such-name")
        await tab.page.keyboard.press("Enter")
        await expect(tab.page.locator("main")).to_contain_text(
            "Nothing has “no-such-name” in its name"
        )
        await tab.open("/search?q=intolerant-0")
        await tab.page.get_by_role("link", name="intolerant-0").click()
        await expect(tab.page.locator("h1")).to_have_text("ops/intolerant-0")


async def slide_to(tab: Tab, step: int) -> None:
    """Move the slider, and wait for the answer of its new time."""
    before = await tab.text("#record")
    await tab.page.locator("#slider").fill(str(step))
    await expect(tab.page.locator("#record")).not_to_have_text(before)


async def test_cluster_is_shown_at_any_time(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open("/cluster")
        now = await client.get("/cluster")
        assert await tab.text("#record") == f"record {now['seq']:,}"
        assert (await tab.text("#summary")).startswith(f"{len(now['nodes'])} nodes")
        devices = [f"devices of {driver}" for driver in now["drivers"]]
        assert await tab.texts("#resource option") == [*now["resources"], *devices]
        await slide_to(tab, 400)
        seq = int((await tab.text("#record")).removeprefix("record ").replace(",", ""))
        assert seq < now["seq"]
        assert tab.page.url.endswith(f"?seq={seq}")
        then = await client.get("/cluster", seq=seq)
        assert (await tab.text("#summary")).startswith(f"{len(then['nodes'])} nodes")
        await tab.open(f"/cluster?seq={seq}")
        assert await tab.text("#record") == f"record {seq:,}"


async def test_most_used_nodes_are_a_table(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open("/cluster")
        nodes = (await client.get("/cluster"))["nodes"]
        await tab.page.locator("#list summary").click()
        await tab.page.locator("#resource").select_option("pods")
        rows = await tab.rows("#list")
        assert {row[0]: row[2:5] for row in rows} == {
            node["name"]: [str(node["pods"]), str(node["allocatable"]["pods"]), str(node["pods"])]
            for node in sorted(nodes, key=lambda node: -node["pods"] / 110)[:25]
        }


async def test_keys_choose_nodes_before_the_map_is_drawn(
    chromium: Chromium, demo_journal: str
) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.page.add_init_script("window.requestAnimationFrame = () => 0")
        await tab.open("/cluster")
        await expect(tab.page.locator("#cluster")).to_have_attribute("aria-busy", "false")
        await tab.page.locator("#heat").focus()
        await tab.page.keyboard.press("ArrowRight")
        await expect(tab.page.locator("#node h2")).to_contain_text("Node ")


async def test_node_shows_its_pods(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        nodes = (await client.get("/cluster"))["nodes"]
        busiest = max(nodes, key=lambda node: node["pods"])["name"]
        await tab.open("/cluster")
        await expect(tab.page.locator("#cluster")).to_have_attribute("aria-busy", "false")
        await tab.page.locator("#heat").focus()
        for _ in range(len(nodes)):
            await tab.page.keyboard.press("ArrowRight")
            shown = tab.page.locator("#node h2")
            await expect(shown).to_contain_text("Node ")
            if await tab.text("#node h2") == f"Node {busiest}":
                break
        await tab.open(f"/cluster?node={busiest}")
        await expect(tab.page.locator("#node h2")).to_contain_text(busiest)
        pods = (await client.get(f"/cluster/nodes/{busiest}"))["pods"]
        assert await tab.texts("#node-pods a") == [
            f"{pod['namespace']}/{pod['name']}" for pod in pods
        ]
        await tab.page.locator("#heat").hover(position={"x": 40, "y": 40})
        await tab.screenshot("cluster")


async def test_time_without_a_cluster_leads_to_the_newest(
    chromium: Chromium, demo_journal: str
) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open("/cluster?at=2001-01-01T00:00:00Z")
        await expect(tab.page.locator("#trouble")).to_contain_text("choose a later time")
        for hidden in ("#cluster", "#when"):
            await expect(tab.page.locator(hidden)).to_be_hidden()
        tab.problems = [one for one in tab.problems if "404 (" not in one]
        await tab.page.locator("#newest a").click()
        await tab.ready()
        await expect(tab.page.locator("#when")).to_contain_text("record")
        await expect(tab.page.locator("#newest")).to_be_hidden()


async def test_difference_of_two_times(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open("/cluster")
        end = (await client.get("/cluster"))["seq"]
        await slide_to(tab, 300)
        begin = int((await tab.text("#record")).removeprefix("record ").replace(",", ""))
        await tab.page.locator("#pin").click()
        await slide_to(tab, 1000)
        await expect(tab.page.locator("#difference h2")).to_have_text(
            f"From record {begin} to {end}"
        )
        found = await client.get("/cluster/difference", fromSeq=begin, toSeq=end)
        headings = await tab.texts("#difference h3")
        assert f"Pods with another node: {len(found['placements'])}" in headings
        assert f"Nodes changed: {len(found['nodesChanged'])}" in headings


async def test_address_keeps_what_was_chosen(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        head = await client.head()
        half = head // 2
        await tab.open(f"/cluster?seq={half}")
        await tab.page.locator("#resource").select_option("memory")
        await tab.page.locator("#group").select_option("kubernetes.io/arch")
        await tab.page.locator("#pin").click()
        await tab.page.locator("#heat").focus()
        await tab.page.keyboard.press("ArrowRight")
        await expect(tab.page.locator("#node h2")).to_contain_text("Node ")
        await tab.page.locator("#slider").fill("1000")
        await expect(tab.page.locator("#difference h2")).to_have_text(
            f"From record {half} to {head}"
        )
        shown = [await tab.text(f"#{one}") for one in ("node h2", "difference h2", "summary")]
        json_link = await tab.page.locator("#as-json").get_attribute("href")
        address = tab.page.url
        await tab.open(address.removeprefix(tab.url))
        await expect(tab.page.locator("#difference h2")).to_have_text(shown[1])
        await expect(tab.page.locator("#node h2")).to_have_text(shown[0])
        assert await tab.text("#summary") == shown[2]
        assert await tab.page.locator("#group").input_value() == "kubernetes.io/arch"
        assert json_link == f"/api/v1/cluster?seq={head}"


async def test_play_walks_through_the_history(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open("/cluster")
        end = await tab.text("#record")
        await tab.page.locator("h1").click()
        await tab.page.keyboard.press("Space")
        await expect(tab.page.locator("#play")).to_have_attribute("aria-pressed", "true")
        await expect(tab.page.locator("#record")).not_to_have_text(end)
        await tab.page.keyboard.press("Space")
        await expect(tab.page.locator("#play")).to_have_attribute("aria-pressed", "false")


async def test_journal_is_described_as_by_the_commands(
    chromium: Chromium, demo_journal: str
) -> None:
    sizes = await cli("journal", "stats", "--journal", demo_journal)
    code, verified, _ = await run_command("journal", "verify", "--journal", demo_journal)
    assert code == 0
    async with browsing(chromium, demo_journal) as (tab, client):
        await client.view.ask(lambda reader: reader.verifier.verify())
        await tab.open("/journal")
        assert f"{sizes['lastSeq']}:{await tab.text('#head-hash')}" in verified
        assert await tab.texts(".figures .pill") == ["verified"]
        rows = await tab.rows("#kinds")
        assert [(row[0], int(row[1])) for row in rows] == [
            (kind["kind"], kind["records"]) for kind in sizes["kinds"]
        ]


async def test_calls_of_plugins_are_timed(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        seq = await client.head()
        await tab.open(f"/plugins?seq={seq}")
        found = await client.typed("plugin_times", "/plugins/times", seq=seq)
        assert [row[:3] for row in await tab.rows("#call-times")] == [
            [one.plugin, one.extension_point, f"{one.calls:,}"] for one in found.times
        ]
        assert {"Filter", "Score"} <= {one.extension_point for one in found.times}
        summary = await tab.text("#times-summary")
        assert f"{found.attempts} attempts of the records {found.first_seq} to {seq}" in summary
        assert await tab.violations() == []


async def test_plugins_are_listed(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open("/plugins")
        found = await client.get("/plugins")
        rows = await tab.rows("table.plugins")
        assert [(row[0], row[2], int(row[5])) for row in rows] == [
            (one["name"], f"{one['distribution']} {one['version']}", one["failures"])
            for one in found["plugins"]
        ]
