"""A user of one namespace in the browser: the login, and pages that say what they leave out."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import expect

from tests.ui.browser.browsing import Chromium, Tab, tab_on
from tests.ui.serving import pod_path
from tests.ui.tenants import CANARY, MINE, TENANT, bearer, preempting_tenants, stored, ui_in_cluster

PAGES = (
    "/",
    "/search",
    pod_path(MINE, "waiting"),
    pod_path(MINE, "urgent", "/decisions/1"),
    pod_path(MINE, "web", "/timeline"),
)
FORBIDDEN = ("/cluster", "/journal", "/plugins", pod_path("canary-ns", "canary-pod"))


async def _log_in(tab: Tab) -> None:
    await tab.open("/search?q=web")
    await expect(tab.page).to_have_url(tab.url + "/login?next=/search?q%3Dweb")
    assert "kubectl create token NAME" in await tab.text("form.panel")
    await tab.page.fill("input[name=token]", "not-a-token")
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("alert")).to_contain_text("not valid")
    # The browser reports the status 403 of the answer.
    tab.problems.clear()
    token = bearer(TENANT)["Authorization"].removeprefix("Bearer ")
    await tab.page.fill("input[name=token]", token)
    await tab.page.keyboard.press("Enter")
    await expect(tab.page).to_have_url(tab.url + "/search?q=web")


async def test_tenant_sees_one_namespace(chromium: Chromium, tmp_path: Path) -> None:
    url = await stored(preempting_tenants(), tmp_path / "journal.db")
    async with (
        ui_in_cluster(url, tmp_path) as client,
        tab_on(chromium, client) as tab,
    ):
        await _log_in(tab)
        assert [row[1] for row in await tab.rows("#results")] == ["web"]
        for path in PAGES:
            await tab.open(path)
            note = "Only namespaces that you may list pods in: team-a."
            assert await tab.text("#visible") == note
            assert CANARY not in await tab.page.content(), path
            assert await tab.violations() == []
        await tab.open("/")
        assert [row[0] for row in await tab.rows("#namespaces")] == [MINE]
        await tab.screenshot("namespaces")
        await tab.open(pod_path(MINE, "web", "/timeline"))
        assert "(in another namespace)" in await tab.text("main")
        assert tab.problems == []
        for path in FORBIDDEN:
            await tab.open(path)
            assert "you may not list" in await tab.text("main"), path
            assert await tab.violations() == []
