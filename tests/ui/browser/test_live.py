"""Pages of queues, gangs and evictions follow a journal that grows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import expect

from asched.journal.opening import open_journal
from asched.journal.store import StoredRecord
from asched.state.records import Assigned, TurnStarted
from tests.ui.browser.browsing import Chromium, Tab, browsing, words
from tests.ui.serving import Client


class GrowingJournal(NamedTuple):
    """The beginning of a journal, and the records that follow."""

    path: str
    later: list[StoredRecord]

    @property
    def seq(self) -> int:
        return self.later[0].seq - 1

    async def grow(self) -> None:
        async with open_journal(self.path) as store:
            await store.claim("test", claimed_at_ns=self.later[0].written_at_ns)
            records = [stored.record for stored in self.later]
            await store.append(records, written_at_ns=self.later[-1].written_at_ns)


@pytest.fixture
async def growing(group_journal: str, tmp_path: Path) -> GrowingJournal:
    """Cut at a late turn: after it, sessions bind and evict."""
    async with open_journal(group_journal, read_only=True) as store:
        records = [stored async for stored in store.read()]
    turns = [stored.seq for stored in records if isinstance(stored.record, TurnStarted)]
    cut = next(seq for seq in turns if seq > len(records) * 5 // 6) - 1
    path = str(tmp_path / "growing.db")
    async with open_journal(path) as store:
        await store.claim("test", claimed_at_ns=records[0].written_at_ns)
        for first in range(0, cut, 100):
            part = records[first : min(cut, first + 100)]
            await store.append(
                [stored.record for stored in part], written_at_ns=part[-1].written_at_ns
            )
    return GrowingJournal(path, records[cut:])


async def shown_after_growth(tab: Tab, client: Client, growing: GrowingJournal) -> None:
    """Wait until the page shows the last record."""
    await growing.grow()
    head = await client.head()
    await expect(tab.page.locator("#live")).to_contain_text(f"Record {head:,}")


async def test_evictions_appear(chromium: Chromium, growing: GrowingJournal) -> None:
    async with browsing(chromium, growing.path) as (tab, client):
        await tab.open("/evictions?kind=reclaim")
        await expect(tab.page.locator("#live")).to_contain_text(f"Record {growing.seq:,}")
        before = await tab.rows("#evictions")
        link = tab.page.locator("#evictions a").last
        await link.focus()
        focused = await link.inner_text()
        await shown_after_growth(tab, client, growing)
        wanted = await client.get("/evictions", kind="reclaim")
        assert wanted["total"] > len(before)
        await expect(tab.page.locator("#evictions tbody tr")).to_have_count(wanted["total"])
        assert await tab.page.evaluate("document.activeElement.textContent") == focused
        assert await tab.page.locator("[name=kind]").input_value() == "reclaim"
        assert await tab.violations() == []


async def test_gangs_and_queues_change(chromium: Chromium, growing: GrowingJournal) -> None:
    async with browsing(chromium, growing.path) as (tab, client):
        queues = await tab.page.context.new_page()
        await queues.goto(tab.url + "/queues")
        await expect(queues.locator("#live")).to_contain_text(f"Record {growing.seq:,}")
        await queues.locator("#queue").select_option(label="research")
        await tab.open("/gangs")
        await shown_after_growth(tab, client, growing)
        gangs = (await client.get("/gangs"))["gangs"]
        pills = tab.page.locator("#gangs .pill")
        await expect(pills).to_have_text([words(gang["phase"]) for gang in gangs])
        history = (await client.get("/queues/history"))["points"]
        own = [str(point["seq"]) for point in history if point["queue"] == "research"]
        await expect(queues.locator("#points tbody td:nth-child(2)")).to_have_text(own)
        session = (await client.get("/queues"))["sessions"][0]["session"]
        await expect(queues.locator("#session-1")).to_contain_text(f"after session {session} ")
        assert await queues.locator("#queue").evaluate("q => q.selectedOptions[0].text") == (
            "research"
        )


async def test_why_follows(chromium: Chromium, growing: GrowingJournal) -> None:
    async with browsing(chromium, growing.path) as (tab, client):
        path = f"/pods/{await pending_pod(client, growing)}"
        before = await client.get(path)
        await tab.open(path)
        await expect(tab.page.locator("#answer")).to_have_text(before["sentence"])
        await tab.page.locator("#facts + dl a").first.focus()
        focused = await tab.page.evaluate("document.activeElement.textContent")
        await shown_after_growth(tab, client, growing)
        after = await client.get(path)
        assert after["status"]["state"] != before["status"]["state"]
        await expect(tab.page.locator("#answer")).to_have_text(after["sentence"])
        assert await tab.text("[data-live=state]") == words(after["status"]["state"])
        assert await tab.page.evaluate("document.activeElement.textContent") == focused
        await tab.open(f"{path}?seq={growing.seq}")
        await expect(tab.page.locator("#answer")).to_have_text(before["sentence"])
        assert not await tab.page.locator("#pause").is_visible()


async def pending_pod(client: Client, growing: GrowingJournal) -> str:
    """A pod that waits, and that a later record assigns, as NAMESPACE/NAME."""
    pending = (await client.get("/pending"))["pods"]
    names = {f"{pod['namespace']}/{pod['name']}" for pod in pending}
    for stored in growing.later:
        if isinstance(stored.record, Assigned) and stored.record.key in names:
            return stored.record.key
    raise AssertionError("no waiting pod is assigned later")


async def test_journal_and_plugins_follow(chromium: Chromium, growing: GrowingJournal) -> None:
    async with browsing(chromium, growing.path) as (tab, client):
        plugins = await tab.page.context.new_page()
        await plugins.goto(tab.url + "/plugins")
        await expect(plugins.locator("[data-live=at] a")).to_have_text(f"record {growing.seq}")
        await tab.open("/journal")
        await expect(tab.page.locator("#head-seq")).to_have_text(f"{growing.seq} records")
        await shown_after_growth(tab, client, growing)
        head = await client.head()
        await expect(tab.page.locator("#head-seq")).to_have_text(f"{head} records")
        await expect(plugins.locator("[data-live=at] a")).to_have_text(f"record {head}")


async def test_cluster_follows_at_its_end(chromium: Chromium, growing: GrowingJournal) -> None:
    async with browsing(chromium, growing.path) as (tab, client):
        past = await tab.page.context.new_page()
        await past.goto(f"{tab.url}/cluster?seq={growing.seq}")
        await expect(past.locator("#record")).to_have_text(f"record {growing.seq:,}")
        node = (await client.get("/cluster"))["nodes"][0]["name"]
        await tab.open(f"/cluster?node={node}")
        await expect(tab.page.locator("#node h2")).to_have_text(f"Node {node}")
        await tab.page.locator("#heat").focus()
        await shown_after_growth(tab, client, growing)
        now = await client.get("/cluster")
        await expect(tab.page.locator("#record")).to_have_text(f"record {now['seq']:,}")
        assert await tab.page.evaluate("document.activeElement.id") == "heat"
        assert "seq=" not in tab.page.url
        assert await past.locator("#record").inner_text() == f"record {growing.seq:,}"
        await past.locator("#slider").fill("1000")
        await expect(past.locator("#record")).to_have_text(f"record {now['seq']:,}")
        assert "seq=" not in past.url
        await expect(past.locator("#live")).to_contain_text(f"Record {now['seq']:,}")


async def test_paused_and_past_pages_stay(chromium: Chromium, growing: GrowingJournal) -> None:
    async with browsing(chromium, growing.path) as (tab, client):
        await tab.open("/gangs")
        await expect(tab.page.locator("#live")).to_contain_text(f"Record {growing.seq:,}")
        await tab.page.get_by_role("button", name="Pause").click()
        await growing.grow()
        await client.caught_up()
        await expect(tab.page.locator("#live")).to_have_text("Paused")
        permalink = tab.page.locator("[data-live=at] a")
        await expect(permalink).to_have_text(f"record {growing.seq}")
        await tab.page.get_by_role("button", name="Follow").click()
        await expect(permalink).to_have_text(f"record {await client.head()}")
        await tab.open(f"/gangs?seq={growing.seq}")
        assert not await tab.page.locator("#pause").is_visible()
        assert not await tab.page.locator("#live").is_visible()
