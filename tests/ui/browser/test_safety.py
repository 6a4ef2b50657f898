"""Hostile names, errors, and accessibility."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.async_api import expect

from asched.journal.opening import open_journal
from tests.audit.recording import Recording, node, pod
from tests.run_size import sample
from tests.ui.browser.browsing import Chromium, Screen, browsing
from tests.ui.serving import pod_path

HOSTILE = "<img src=x onerror=alert(1)>"
PAGES = (
    "/",
    "/search",
    "/search?q=ops",
    pod_path("ops", "intolerant-0"),
    pod_path("ops", "intolerant-0", "/decisions/1"),
    pod_path("ops", "intolerant-0", "/timeline"),
    "/cluster",
    "/journal",
    "/plugins",
    pod_path("ops", "no-such-pod"),
)


@pytest.fixture
async def hostile_journal(tmp_path: Path) -> str:
    """A journal in which every name is markup."""
    recording = Recording()
    recording.see(
        node(HOSTILE, taint=HOSTILE, zone=HOSTILE),
        pod(HOSTILE, "9", namespace=HOSTILE, nodeSelector={"zone": HOSTILE}),
        pod(f"{HOSTILE}-2", namespace=HOSTILE, tolerations=[{"operator": "Exists"}]),
    )
    recording.bind(recording.decide())
    recording.turn(2.0)
    path = str(tmp_path / "hostile.db")
    async with open_journal(path) as store:
        await recording.store_in(store)
    return path


@pytest.mark.parametrize("name", [HOSTILE, f"{HOSTILE}-2"])
async def test_names_are_text_in_every_view(
    chromium: Chromium, hostile_journal: str, name: str
) -> None:
    own = pod_path(HOSTILE, name)
    paths = (own, f"{own}/decisions/1", f"{own}/timeline", "/", "/search", "/search?q=%3Cimg")
    async with browsing(chromium, hostile_journal) as (tab, _):
        for path in (*paths, "/cluster", "/plugins", "/journal"):
            await tab.open(path)
            assert await tab.page.locator("main img").count() == 0, path
        await tab.open(f"{own}/decisions/1")
        assert HOSTILE in await tab.text("h1")
        assert HOSTILE in await tab.text("#matrix")
        await tab.open(f"{own}/timeline")
        assert HOSTILE in await tab.text("h1")


async def test_hostile_node_is_text_in_the_cluster(
    chromium: Chromium, hostile_journal: str
) -> None:
    async with browsing(chromium, hostile_journal) as (tab, _):
        await tab.open("/cluster")
        await tab.page.locator("#group").select_option("zone")
        await tab.page.locator("#heat").focus()
        await tab.page.keyboard.press("ArrowRight")
        await expect(tab.page.locator("#node h2")).to_contain_text(HOSTILE)
        assert await tab.texts("#node-pods a") == [f"{HOSTILE}/{HOSTILE}-2"]
        await tab.page.locator("#heat").hover(position={"x": 30, "y": 40})
        assert HOSTILE in await tab.text("#tip")
        assert await tab.page.locator("main img").count() == 0


async def test_no_serious_violation_of_accessibility(chromium: Chromium, demo_journal: str) -> None:
    found = {}
    async with browsing(chromium, demo_journal) as (tab, _):
        for path in sample(PAGES):
            await tab.open(path)
            violations = await tab.violations_in_both_schemes()
            if violations:
                found[path] = violations
        # The browser reports the page of an unknown pod as an error.
        tab.problems = [one for one in tab.problems if "404 (Not Found)" not in one]
    assert found == {}


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/pods/ops/intolerant-9", 404, "did you mean"),
        ("/pods/ops/intolerant-0?at=2001-01-01T00:00:00Z", 404, "the journal begins at"),
        ("/pods/ops/intolerant-0?seq=99999999", 404, "the journal ends at record"),
        ("/pods/ops/intolerant-0?at=soon", 400, "soon"),
        ("/pods/ops/intolerant-0/decisions/77", 404, "no attempt 77"),
        ("/nothing", 404, "there is no such page"),
    ],
)
async def test_bad_input_gets_a_page(
    chromium: Chromium, demo_journal: str, path: str, status: int, text: str
) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        response = await tab.page.goto(tab.url + path)
        assert response is not None
        assert response.status == status
        assert text in await tab.text("[role=alert]")
        assert "Traceback" not in await tab.page.content()
        tab.problems = [one for one in tab.problems if f"{status} (" not in one]


async def test_view_reports_a_failed_request(chromium: Chromium, demo_journal: str) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open("/cluster?seq=99999999")
        assert "the journal ends at record" in await tab.text("#trouble [role=alert]")
        await tab.open("/cluster")
        await tab.page.route("**/api/v1/cluster?*", lambda route: route.abort())
        await tab.page.locator("#slider").fill("500")
        await expect(tab.page.locator("#trouble")).to_contain_text("The server does not answer")
        tab.problems = []


async def test_journal_goes_away_and_returns(
    chromium: Chromium, recorded_groups: Path, tmp_path: Path
) -> None:
    """Open pages say so, and go on by themselves."""
    path, away = tmp_path / "journal.db", tmp_path / "away.db"
    shutil.copy(recorded_groups, path)
    async with browsing(chromium, str(path)) as (tab, client):
        gangs = await tab.page.context.new_page()
        await tab.open("/")
        await gangs.goto(tab.url + "/gangs")
        head = f"Record {await client.head():,}"
        await expect(gangs.locator("#live")).to_contain_text(head)
        shutil.move(path, away)
        for page in (tab.page, gangs):
            await expect(page.locator("#live")).to_contain_text("the file was removed or moved")
        response = await tab.page.context.request.get(tab.url + "/queues")
        assert response.status == 503
        text = await response.text()
        assert "The page works again when the journal can be read." in text
        assert "Try again" in text
        shutil.move(away, path)
        for page in (tab.page, gangs):
            await expect(page.locator("#live")).to_contain_text(head)
            await expect(page.locator("#trouble [role=alert]")).to_have_count(0)
        # The browser reports answers with status 503.
        tab.problems = [one for one in tab.problems if "503 (" not in one]


async def test_empty_journal_says_so(chromium: Chromium, tmp_path: Path) -> None:
    path = str(tmp_path / "empty.db")
    async with open_journal(path) as store:
        await Recording().store_in(store)
    async with browsing(chromium, path) as (tab, _):
        await tab.open("/search")
        assert "The journal has no pods and nodes yet" in await tab.text("main")
        await tab.open("/cluster")
        assert "No nodes" in await tab.text("#none")
        await tab.open("/")
        assert "Nothing" in await tab.text("#overview")


async def test_login_leads_to_the_page_that_was_asked_for(
    chromium: Chromium, demo_journal: str
) -> None:
    token = "0123456789abcdef"
    async with browsing(chromium, demo_journal, Screen(token=token)) as (tab, _):
        await tab.open("/plugins")
        assert await tab.text("h1") == "Log in"
        assert Path(demo_journal).name not in await tab.page.content()
        assert await tab.violations() == []
        await tab.page.locator("[name=token]").fill("wrong")
        await tab.page.keyboard.press("Enter")
        await expect(tab.page.locator("[role=alert]")).to_contain_text("token is not valid")
        tab.problems = []
        await tab.page.locator("[name=token]").fill(token)
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_url("**/plugins")
        assert await tab.text("h1") == "Plugins"
