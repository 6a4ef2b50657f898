"""The cluster page shows devices of Dynamic Resource Allocation by driver."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import expect

from asched.journal.opening import open_journal
from tests.ui.browser.browsing import Chromium, browsing
from tests.ui.test_devices import with_devices

CHOICE = "devices of gpu.example.com"


async def test_map_shows_devices_of_a_driver(chromium: Chromium, tmp_path: Path) -> None:
    path, recording = str(tmp_path / "journal.db"), with_devices()
    async with open_journal(path) as store:
        await recording.store_in(store)
    async with browsing(chromium, path) as (tab, client):
        await tab.open("/cluster?node=n0")
        await tab.page.locator("#resource").select_option(CHOICE)
        shown = f"2 nodes, 1 with {CHOICE}: 2 of 4 allocated, 1 tainted, 1 free; 0 cordoned"
        assert await tab.text("#summary") == shown
        assert await tab.page.locator("#devices-legend").is_visible()
        assert not await tab.page.locator("#shares-legend").is_visible()
        text = "2 of 4 allocated, 1 tainted, 1 free"
        await expect(tab.page.locator("#node-devices dd")).to_have_text(text)
        await tab.page.locator("#list summary").click()
        await expect(tab.page.locator("#list tbody tr")).to_have_count(1)
        assert await tab.rows("#list") == [["n0", "50 %", "2", "4", "0", "1 tainted"]]
        assert await tab.violations_in_both_schemes() == []
        end = (await client.get("/cluster"))["seq"]
        await tab.open(f"/cluster?seq={end - 2}&resource={CHOICE.replace(' ', '+')}")
        assert f"{CHOICE}: 1 of 4 allocated" in await tab.text("#summary")
        await tab.page.locator("#heat").hover(position={"x": 20, "y": 20})
        await expect(tab.page.locator("#tip")).to_have_text(
            "n0: 1 of 4 allocated, 1 tainted, 2 free, 0 pods"
        )
        await tab.screenshot("cluster-devices")
