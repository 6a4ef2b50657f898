"""The what-if lab in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from asched.journal.opening import open_journal
from asched.ui.lab.runs import LabSettings
from tests.audit.recording import Recording, node, pod
from tests.ui.browser.browsing import Chromium, Screen, Tab, browsing
from tests.ui.serving import cli
from tests.ui.test_lab import ENDLESS, PACKING

TIMEOUT_MS = 60_000
"""For what a busy machine does slowly: start a worker, check a form."""
HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_TEXT = f"kind: '{HOSTILE}'\n# </textarea><script>alert(1)</script>\n"


@pytest.fixture
def screen(demo_journal: str, tmp_path: Path) -> Screen:
    return Screen(lab=LabSettings(str(demo_journal), tmp_path / "results"))


async def fill(tab: Tab, field: str, text: str) -> None:
    """Write into an editor, and wait until the server has checked it."""
    before = await tab.page.locator("#checked").get_attribute("data-checks") or "0"
    await tab.page.locator(f"#{field}").fill(text)
    await expect(tab.page.locator("#checked")).not_to_have_attribute(
        "data-checks", before, timeout=TIMEOUT_MS
    )
    await expect(tab.page.locator("#verdict")).not_to_have_text(
        "not checked yet", timeout=TIMEOUT_MS
    )


async def opened(tab: Tab) -> None:
    await tab.open("/lab")
    await expect(tab.page.locator("#verdict")).to_have_text("No problems found", timeout=TIMEOUT_MS)


async def test_comparison_from_form_to_result(
    chromium: Chromium, demo_journal: str, screen: Screen, tmp_path: Path
) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(PACKING)
    async with browsing(chromium, demo_journal, screen) as (tab, client):
        await opened(tab)
        await fill(tab, "configuration", PACKING)
        await tab.page.locator("[name=plugins]").fill("NodeAffinity=3")
        name = (await client.get("/cluster"))["nodes"][0]["name"]
        await tab.page.locator("#template").fill(name)
        await tab.page.locator("#number").fill("2")
        await tab.page.locator("#add").click()
        await expect(tab.page.locator("[name=addNodes]")).to_have_value(
            f"{name}=2", timeout=TIMEOUT_MS
        )
        await tab.page.locator("#run").click()
        await tab.page.wait_for_url("**/lab/results/*")
        await expect(tab.page.locator("#figures")).to_be_visible(timeout=TIMEOUT_MS)
        await tab.ready()
        assert await tab.violations() == []
        await tab.screenshot("lab-result")
        shown = {row[0]: row[1:] for row in await tab.rows(".figures-table")}
        command = (await tab.text("#command")).split()
        assert command[:2] == ["asched", "diff"]
        result_id = tab.page.url.rpartition("/")[2]
        request = (await client.get(f"/lab/results/{result_id}"))["request"]
        assert await tab.page.locator("#charts canvas").count() >= 5
        await tab.open("/lab")
        assert await tab.page.locator("#results a").get_attribute("href") == (
            f"/lab/results/{result_id}"
        )
        await tab.screenshot("lab")
    printed = await cli(
        "diff", "--journal", demo_journal, "--config", str(file), "--plugins", "NodeAffinity=3",
        "--add-nodes", f"{name}=2", "--until", request["until"],
    )  # fmt: skip
    for label, field in (
        ("placed", "placed"),
        ("attempts", "attempts"),
        ("rejections", "rejections"),
    ):
        runs = ("baseline", "candidate")
        wanted = [f"{printed[run]['figures'][field]:,}" for run in runs]
        assert shown[label][:2] == wanted


async def test_mistakes_are_shown_at_their_lines(
    chromium: Chromium, demo_journal: str, screen: Screen
) -> None:
    async with browsing(chromium, demo_journal, screen) as (tab, _):
        await opened(tab)
        await fill(tab, "configuration", PACKING.replace("MostAllocated", "Most"))
        await expect(tab.page.locator("#verdict")).to_have_text("1 problem", timeout=TIMEOUT_MS)
        assert "configuration, line 6: document 1: profiles[0]" in await tab.text("#problems")
        assert await tab.text(".gutter .marked") == "6"
        await tab.page.locator("#problems button").click()
        selected = await tab.page.evaluate("getSelection().toString()")
        assert "scoringStrategy" in selected
        assert await tab.violations() == []
        await fill(tab, "configuration", HOSTILE_TEXT)
        await expect(tab.page.locator("#problems")).to_contain_text(HOSTILE, timeout=TIMEOUT_MS)
        assert await tab.page.locator("main img").count() == 0
        # Without scripts the server checks the form, too.
        await tab.page.locator("#run").click()
        await tab.ready()
        assert HOSTILE in await tab.text("#problems")
        assert await tab.page.locator("#configuration").input_value() == HOSTILE_TEXT
        tab.problems = [one for one in tab.problems if "400 (Bad Request)" not in one]


async def test_keyboard_completes_from_the_schema(
    chromium: Chromium, demo_journal: str, screen: Screen
) -> None:
    async with browsing(chromium, demo_journal, screen) as (tab, _):
        await opened(tab)
        area, keys = tab.page.locator("#configuration"), tab.page.keyboard
        await area.focus()
        await keys.press("Control+Space")
        await expect(tab.page.locator(".proposals li")).to_have_count(2, timeout=TIMEOUT_MS)
        await keys.press("Enter")
        await keys.type("prof")
        await keys.press("Control+Space")
        assert (await tab.texts(".proposals li .label"))[0] == "profiles"
        await keys.press("Enter")
        await keys.press("Enter")
        await keys.type("- pluginConfig:\n- name: NodeResourcesFit")
        await keys.press("Escape")
        await keys.type("\nargs:\nscoringStrategy:\nty")
        await keys.press("Control+Space")
        await keys.press("Tab")
        await keys.press("Control+Space")
        labels = await tab.texts(".proposals li .label")
        assert {"LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"} <= {*labels}
        await keys.type("Most")
        await keys.press("ArrowDown")
        assert await area.get_attribute("aria-activedescendant") != ""
        await keys.press("Enter")
        text = await area.input_value()
        assert text == (
            "apiVersion: kubescheduler.config.k8s.io/v1\n"
            "kind: KubeSchedulerConfiguration\n"
            "profiles:\n"
            "  - pluginConfig:\n"
            "      - name: NodeResourcesFit\n"
            "        args:\n"
            "          scoringStrategy:\n"
            "            type: MostAllocated"
        )
        await expect(tab.page.locator("#verdict")).to_have_text(
            "No problems found", timeout=TIMEOUT_MS
        )
        await tab.page.locator("#configuration").fill("")
        await keys.press("Tab")
        assert await tab.page.evaluate("document.activeElement.id") != "configuration"


async def test_recorded_configuration_is_inserted(
    chromium: Chromium, demo_journal: str, screen: Screen
) -> None:
    async with browsing(chromium, demo_journal, screen) as (tab, client):
        await opened(tab)
        await tab.page.locator("#insert").click()
        recorded = (await client.get("/lab/configuration"))["text"]
        await expect(tab.page.locator("#configuration")).to_have_value(recorded, timeout=TIMEOUT_MS)
        await expect(tab.page.locator("#verdict")).to_have_text(
            "No problems found", timeout=TIMEOUT_MS
        )
        lines = len(recorded.splitlines())
        assert str(lines) in await tab.text(".gutter >> nth=-1")


async def test_progress_and_cancel(chromium: Chromium, demo_journal: str, screen: Screen) -> None:
    async with browsing(chromium, demo_journal, screen) as (tab, _):
        await opened(tab)
        await tab.page.get_by_label("Scenario", exact=True).check()
        await fill(tab, "scenario", ENDLESS)
        await tab.page.locator("#run").click()
        await tab.page.wait_for_url("**/lab/results/*")
        await expect(tab.page.locator("#activity")).to_contain_text("scenario", timeout=TIMEOUT_MS)
        assert await tab.violations() == []
        await tab.page.locator("#cancel").click()
        await expect(tab.page.locator("[role=alert]")).to_contain_text(
            "The run was cancelled", timeout=TIMEOUT_MS
        )
        assert await tab.violations() == []
        await tab.page.get_by_role("link", name="Change it").click()
        assert await tab.page.input_value("#scenario") == ENDLESS


@pytest.mark.parametrize("dark", [False, True])
async def test_form_is_accessible(
    chromium: Chromium, demo_journal: str, screen: Screen, dark: bool
) -> None:
    async with browsing(chromium, demo_journal, screen._replace(dark=dark)) as (tab, _):
        await opened(tab)
        await fill(tab, "configuration", "kind: Po\nprofiles: 1\n")
        await tab.page.locator("#configuration").focus()
        await tab.page.keyboard.press("Control+Space")
        assert await tab.violations() == []


async def test_names_are_text(chromium: Chromium, tmp_path: Path) -> None:
    recording = Recording()
    recording.see(node(HOSTILE), pod(HOSTILE, namespace=HOSTILE))
    recording.bind(recording.decide())
    recording.turn(2.0)
    recording.see(pod(f"{HOSTILE}-2", "99"))
    recording.decide()
    recording.turn(3.0)
    path = str(tmp_path / "hostile.db")
    async with open_journal(path) as store:
        await recording.store_in(store)
    screen = Screen(lab=LabSettings(path, tmp_path / "results"))
    async with browsing(chromium, path, screen) as (tab, client):
        await opened(tab)
        assert await tab.page.locator("#nodes option").get_attribute("value") == HOSTILE
        await tab.page.locator("[name=plugins]").fill("-NodeResourcesFit")
        await tab.page.locator("#run").click()
        await expect(tab.page.locator("#figures")).to_be_visible(timeout=TIMEOUT_MS)
        await tab.ready()
        assert f"default/{HOSTILE}-2" in await tab.text("#candidate")
        await tab.page.locator("#candidate a").first.click()
        await tab.ready()
        assert f"default/{HOSTILE}-2" in await tab.text("h1")
        await tab.page.go_back()
        await tab.ready()
        assert await tab.page.locator("main img").count() == 0
        overview = await client.get("/lab")
        assert json.dumps(overview["results"][0]["changes"]) != ""
