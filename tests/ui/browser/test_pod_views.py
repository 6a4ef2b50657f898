"""The views of a pod show what ``asched explain`` and ``asched history`` print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asched.journal.opening import open_journal
from tests.audit.recording import Recording, node
from tests.plugins.dynamic_resources.objects import a_claim, a_class, a_pod, a_request, a_slice
from tests.ui.browser.browsing import PHONE, Chromium, Screen, Tab, browsing
from tests.ui.serving import cli, pod_path

REJECTED = pod_path("ops", "intolerant-0")


def of_pod(key: str, rest: str) -> str:
    """The path of a view of the pod NAMESPACE/NAME."""
    namespace, name = key.split("/")
    return pod_path(namespace, name, rest)


async def explained(journal: str, pod: str) -> Any:
    return await cli("explain", pod, "--journal", journal)


async def test_why_page_shows_the_explanation(chromium: Chromium, demo_journal: str) -> None:
    wanted = await explained(demo_journal, "ops/intolerant-0")
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open(REJECTED)
        answer = await client.get(REJECTED)
        assert await tab.text("#answer") == answer["sentence"]
        assert await tab.rows("#reasons") == [
            [str(reason["nodes"]), "", reason["plugin"], reason["reason"]]
            for reason in wanted["reasons"]
        ]
        changes = {change["summary"] for node in wanted["unblocking"] for change in node["changes"]}
        assert set(await tab.texts("#unblocking strong")) == changes
        nodes = " ".join(await tab.texts("#unblocking .quiet"))
        assert all(node["node"] in nodes for node in wanted["unblocking"])
        status = answer["status"]
        assert (await tab.text("#queue")).startswith(status["queue"])
        assert await tab.texts(".pill.good") == ["recomputed: identical"]
        await tab.screenshot("why")


async def matrix(tab: Tab) -> list[list[str]]:
    """All rows, as far as they are drawn."""
    return await tab.rows("#matrix")


async def columns(tab: Tab) -> list[str]:
    found = await tab.texts("#matrix thead button")
    return [text.partition(" ×")[0] for text in found]


async def test_matrix_shows_every_score(
    chromium: Chromium, demo_journal: str, assigned_pod: str
) -> None:
    wanted = await explained(demo_journal, assigned_pod)
    path = of_pod(assigned_pod, "/decisions/1")
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open(path)
        answer = await client.get(path)
        await tab.page.locator("#differing").uncheck()
        await tab.page.locator("#outcome").select_option("feasible")
        plugins = [score["plugin"] for score in wanted["nodes"][0]["scores"]]
        feasible = [node for node in wanted["nodes"] if node["feasible"]]
        assert (await columns(tab))[: 3 + len(plugins)] == ["Node", "Rank", "Total", *plugins]
        for mode, field in (("weighted", "weighted"), ("raw", "raw"), ("normalized", "normalized")):
            await tab.page.locator("#mode").select_option(mode)
            assert [row[: 3 + len(plugins)] for row in await matrix(tab)] == [
                [node["name"], str(node["rank"]), str(node["total"])]
                + [str(score[field]) for score in node["scores"]]
                for node in feasible
            ]
        assert await tab.texts("#matrix tr.winner th") == [wanted["decision"]["node"]]
        assert await tab.text("#margin") == str(answer["margin"])
        assert await tab.text("#runner-up") == answer["runnerUp"]
        assert await tab.text("#ties") == str(len(answer["ties"]))


async def test_matrix_hides_columns_without_a_difference(
    chromium: Chromium, demo_journal: str, assigned_pod: str
) -> None:
    path = of_pod(assigned_pod, "/decisions/1")
    async with browsing(chromium, demo_journal) as (tab, client):
        answer = await client.get(path)
        await tab.open(path)
        shown = {*answer["differing"], *answer["filterPlugins"]}
        assert set((await columns(tab))[3:]) == shown
        await tab.screenshot("decision")


async def test_matrix_is_sorted_and_filtered(
    chromium: Chromium, demo_journal: str, assigned_pod: str
) -> None:
    wanted = await explained(demo_journal, assigned_pod)
    names = [node["name"] for node in wanted["nodes"]]
    rejected = [node["name"] for node in wanted["nodes"] if not node["feasible"]]
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open(of_pod(assigned_pod, "/decisions/1"))
        await tab.page.get_by_role("button", name="Node", exact=True).click()
        assert [row[0] for row in await matrix(tab)] == sorted(names)
        await tab.page.get_by_role("button", name="Node", exact=True).click()
        assert [row[0] for row in await matrix(tab)] == sorted(names, reverse=True)
        await tab.page.locator("#outcome").select_option("rejected")
        assert {row[0] for row in await matrix(tab)} == set(rejected)
        await tab.page.locator("#outcome").select_option("")
        await tab.page.locator("#filter").fill(names[0])
        assert [row[0] for row in await matrix(tab)] == [names[0]]
        await tab.page.locator("#filter").fill("no such node")
        assert "No node matches" in await tab.text("#matrix")


async def test_rejections_are_in_the_matrix(chromium: Chromium, demo_journal: str) -> None:
    wanted = await explained(demo_journal, "ops/intolerant-0")
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open(f"{REJECTED}/decisions/1")
        titles = [
            await cell.get_attribute("title")
            for cell in await tab.page.locator("#matrix td.refused").all()
        ]
        assert sorted(map(str, titles)) == sorted(
            f"{one['plugin']}: {', '.join(one['reasons'])} ({one['code']})"
            for node in wanted["nodes"]
            for one in node["rejectedBy"]
        )
        await tab.page.locator("#record summary").click()
        assert f'"seq": {wanted["decision"]["seq"]}' in await tab.text("#record pre")


async def test_timeline_shows_the_history(
    chromium: Chromium, demo_journal: str, assigned_pod: str
) -> None:
    [wanted] = (await cli("history", assigned_pod, "--journal", demo_journal))["pods"]
    path = of_pod(assigned_pod, "/timeline")
    async with browsing(chromium, demo_journal) as (tab, client):
        spans = (await client.get(path))["spans"]
        await tab.open(path)
        rows = await tab.rows("#entries")
        assert [int(row[2]) for row in rows] == [entry["seq"] for entry in wanted["entries"]]
        kinds = [
            (await shape.get_attribute("class") or "").split()[1]
            for shape in await tab.page.locator("#timeline rect.span").all()
        ]
        assert kinds == [span["kind"] for span in spans]
        assert await tab.page.locator("#timeline path.arrow").count() >= 2
        await tab.page.locator("#timeline rect.binding").click()
        chosen = await tab.texts("#entries tr.chosen td:nth-child(4)")
        assert chosen == ["assigned"]
        await tab.page.locator("#scale").select_option("true")
        assert await tab.page.locator("#timeline rect.span").count() == len(spans)
        await tab.screenshot("timeline")


@pytest.mark.parametrize("rest", ["", "/decisions/1", "/timeline"])
async def test_views_of_a_pod_fit_on_a_phone(
    chromium: Chromium, demo_journal: str, rest: str
) -> None:
    async with browsing(chromium, demo_journal, Screen(*PHONE)) as (tab, _):
        await tab.open(REJECTED + rest)
        size = "({scrollWidth, scrollHeight}) => [scrollWidth, scrollHeight]"
        width, height = await tab.page.locator("html").evaluate(size)
        assert width <= PHONE[0]
        # No column is so narrow that its text has a character in each line.
        assert height < 4 * PHONE[1]


async def test_views_are_reached_with_keys(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open(REJECTED)
        await tab.page.keyboard.press("2")
        await tab.page.wait_for_url(f"**{REJECTED}/decisions/1")
        await tab.ready()
        await tab.page.keyboard.press("3")
        await tab.page.wait_for_url(f"**{REJECTED}/timeline")
        await tab.ready()
        await tab.page.keyboard.press("/")
        await tab.page.keyboard.type("intol")
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_url("**/search?q=intol")
        await tab.page.keyboard.press("?")
        assert await tab.page.locator("#keys").is_visible()


async def test_permalink_holds_its_time(chromium: Chromium, demo_journal: str) -> None:
    [history] = (await cli("history", "ops/intolerant-0", "--journal", demo_journal))["pods"]
    seq = history["entries"][0]["seq"]
    async with browsing(chromium, demo_journal) as (tab, client):
        await tab.open(f"{REJECTED}?seq={seq}")
        answer = await client.get(REJECTED, seq=seq)
        assert answer["status"]["state"] == "active"
        assert await tab.text("#answer") == answer["sentence"]
        link = tab.page.get_by_role("link", name="Timeline")
        assert (await link.get_attribute("href") or "").endswith(f"?seq={seq}")


async def test_times_are_in_utc_or_local(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open(REJECTED)
        utc = await tab.text("main time >> nth=0")
        await tab.page.keyboard.press("t")
        local = await tab.text("main time >> nth=0")
        assert (utc[-4:], local[-7:]) == (" UTC", " +05:30")
        assert utc[17:23] == local[17:23]
        await tab.open(REJECTED)
        assert await tab.text("main time >> nth=0") == local


async def device_journal(path: Path, *devices: str) -> str:
    """A pod that wants two devices of the only node."""
    recording = Recording()
    recording.see(node("n0"), a_class(), a_slice("n0", *devices))
    recording.see(a_claim("c", a_request(count=2)), a_pod("p", "c"))
    recording.decide()
    recording.turn(1.0)
    async with open_journal(str(path)) as store:
        await recording.store_in(store)
    return str(path)


async def test_decision_shows_the_devices_of_a_claim(chromium: Chromium, tmp_path: Path) -> None:
    journal = await device_journal(tmp_path / "devices.db", "gpu-0", "gpu-1")
    wanted = await explained(journal, "d/p")
    async with browsing(chromium, journal) as (tab, _):
        await tab.open(pod_path("d", "p", "/decisions/1"))
        assert await tab.texts("#devices li") == wanted["decision"]["devices"]


async def test_decision_shows_what_requests_of_devices_find(
    chromium: Chromium, tmp_path: Path
) -> None:
    journal = await device_journal(tmp_path / "devices.db", "gpu-0")
    wanted = await explained(journal, "d/p")
    async with browsing(chromium, journal) as (tab, _):
        await tab.open(pod_path("d", "p", "/decisions/1"))
        await tab.page.locator("#device-requests summary").click()
        [request] = wanted["nodes"][0]["requests"]
        [row] = await tab.rows("#device-requests")
        assert row[:2] == ["n0", f"{request['claim']}/{request['request']}"]
        assert row[2:5] == [str(request[key]) for key in ("wanted", "suitable", "considered")]
