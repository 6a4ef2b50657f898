"""The shadow report in a browser."""

from __future__ import annotations

from tests.ui.browser.browsing import Chromium, Screen, browsing
from tests.ui.serving import cli
from tests.ui.test_shadow import HOSTILE, ShadowFiles, files, hostile

__all__ = ["files", "hostile"]


async def test_report_and_one_disagreement(chromium: Chromium, files: ShadowFiles) -> None:
    printed = await cli("shadow", "--tape", str(files.tape))
    async with browsing(chromium, files.journal) as (tab, _):
        await tab.open("/shadow")
        assert await tab.text("#bindings") == str(printed["bindings"]["compared"])
        share = 100 * printed["bindings"]["agreed"] / printed["bindings"]["compared"]
        assert await tab.text("#bindings-share") == f"{share:.2f} %"
        causes = {row[0]: (int(row[1]), int(row[2])) for row in await tab.rows("#causes")}
        assert {cause: numbers[0] for cause, numbers in causes.items() if numbers[0]} == (
            printed["bindings"]["causes"]
        )
        assert await tab.texts("#differences th a") == [
            difference["pod"] for difference in printed["differences"]
        ]
        assert await tab.violations() == []
        await tab.screenshot("shadow")
        await tab.page.locator("#differences th a").first.click()
        await tab.ready()
        first = printed["differences"][0]
        assert first["pod"] in await tab.text("h1")
        shown = {row[0].split(" ")[0]: row[1] for row in await tab.rows("#nodes")}
        assert shown == {node["name"]: str(node.get("total", "–")) for node in first["nodes"]}
        assert await tab.violations() == []
        await tab.screenshot("shadow-difference")
        await tab.page.get_by_role("link", name="Why this pod").click()
        await tab.ready()
        assert first["pod"] in await tab.text("h1")
        assert "The pod waits for its next attempt" in await tab.text("#answer")


async def test_filter_keeps_its_address(chromium: Chromium, files: ShadowFiles) -> None:
    async with browsing(chromium, files.journal, Screen(dark=True)) as (tab, _):
        await tab.open("/shadow")
        [cause, *_] = await tab.rows("#causes")
        await tab.page.locator("#causes a").first.click()
        await tab.ready()
        assert tab.page.url.endswith(f"?cause={cause[0]}")
        assert len(await tab.rows("#differences")) == int(cause[1]) + int(cause[2])
        await tab.page.locator("[name=pod]").fill("no-such-pod")
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_url("**pod=no-such-pod**")
        assert "Nothing matches" in await tab.text("main")
        assert await tab.violations() == []


async def test_journal_of_a_scheduler(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open("/shadow")
        assert "This is not the journal of a shadow" in await tab.text("main")
        assert await tab.violations() == []


async def test_names_are_text(chromium: Chromium, hostile: str) -> None:
    async with browsing(chromium, hostile) as (tab, _):
        await tab.open("/shadow")
        assert await tab.texts("#differences th a") == [f"default/{HOSTILE}"]
        await tab.page.locator("#differences th a").click()
        assert HOSTILE in await tab.text("h1")
        assert await tab.page.locator("main img").count() == 0
