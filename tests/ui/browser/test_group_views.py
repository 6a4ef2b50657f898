"""The pages of gangs, owners, queues and evictions show what ``asched show`` prints."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from playwright.async_api import expect

from asched.journal.opening import open_journal
from asched.model.groups import PodGroup
from asched.model.resources import GroupResource, decode
from tests.audit.recording import Recording, node, pod
from tests.run_size import sample
from tests.ui.browser.browsing import PHONE, Chromium, Screen, browsing, words
from tests.ui.group_scenario import SCENARIO, after, native, pods, record
from tests.ui.serving import cli

HOSTILE = "<img src=x onerror=alert(1)>"
PAGES = (
    "/",
    "/queues",
    "/gangs",
    "/evictions",
    "/gangs/ml/huge",
    "/gangs/ml/training/timeline",
    "/owners/shop/ReplicaSet/web-5d8f",
    "/owners/batch/Job/solo/timeline",
)


async def shown(journal: str, *arguments: str) -> Any:
    return await cli("show", *arguments, "--journal", journal)


def csv_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def named(found: Any) -> str:
    return f"{found['namespace']}/{found['name']}"


async def test_evictions_page_lists_them(chromium: Chromium, group_journal: str) -> None:
    wanted = (await shown(group_journal, "evictions"))["evictions"]
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/evictions")
        rows = await tab.rows("#evictions")
        assert len(rows) == len(wanted)
        for row, one in zip(rows, wanted, strict=True):
            assert row[1] == str(one["seq"])
            assert row[2].startswith(named(one["victim"]))
            assert row[2].endswith(f"on {one['node']}")
            assert row[3].startswith(named(one["beneficiary"]))
            assert row[4] == f"{one['kind']} {one['rule']} {one['by']}"
            assert row[5].split()[0] == one["result"]
            assert row[6].split()[0] == one["outcome"]
            assert one["startedOn"] in row[6]
        await tab.screenshot("evictions")


async def test_evictions_are_filtered_and_exported(chromium: Chromium, group_journal: str) -> None:
    async with browsing(chromium, group_journal) as (tab, client):
        await tab.open("/evictions")
        await tab.page.locator("[name=q]").last.fill("batch/bold")
        await tab.page.locator("[name=kind]").select_option("preempt")
        await tab.page.get_by_role("button", name="Show").click()
        await tab.ready()
        assert "kind=preempt" in tab.page.url
        assert {row[3].split()[0] for row in await tab.rows("#evictions")} == {"batch/bold-0"}
        answer = await client.get("/evictions", q="batch/bold", kind="preempt")
        assert len(await tab.rows("#evictions")) == len(answer["evictions"]) == 2
        async with tab.page.expect_download() as started:
            await tab.page.get_by_role("link", name="CSV").click()
        exported = await (await started.value).path()
        assert csv_lines(exported) == 3
        await tab.page.locator("[name=q]").last.fill("no such pod")
        await tab.page.keyboard.press("Enter")
        await tab.ready()
        assert "No eviction matches" in await tab.text("main")


async def test_pod_page_leads_to_its_evictions(chromium: Chromium, group_journal: str) -> None:
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/pods/shop/web-8")
        assert await tab.text("#evictions") == "evicted 1 time"
        await tab.page.locator("#evictions").click()
        await tab.ready()
        [row] = await tab.rows("#evictions")
        assert row[2].startswith("shop/web-8")
        await tab.page.get_by_role("link", name="ReplicaSet/web-5d8f").click()
        await tab.ready()
        assert await tab.text("h1") == "ReplicaSet shop/web-5d8f"


async def test_gangs_page_lists_them_in_order(chromium: Chromium, group_journal: str) -> None:
    wanted = (await shown(group_journal, "gangs"))["gangs"]
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/gangs")
        rows = await tab.rows("#gangs")
        for row, gang in zip(rows, wanted, strict=True):
            assert row[:7] == [
                str(gang["position"] or ""),
                named(gang),
                words(gang["phase"]),
                *(str(gang[name]) for name in ("minimum", "bound", "waiting", "pending")),
            ]
            assert row[8:10] == [gang["queue"], str(gang["priority"])]
        await tab.page.locator("[name=phase]").select_option("complete")
        await tab.page.get_by_role("button", name="Show").click()
        await tab.ready()
        assert {row[2] for row in await tab.rows("#gangs")} == {"complete"}
        await tab.open("/gangs")
        await tab.screenshot("gangs")


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/gangs/ml/huge", ("gang", "ml/huge")),
        ("/gangs/batch/stuck", ("gang", "batch/stuck")),
        ("/owners/shop/ReplicaSet/web-5d8f", ("owner", "shop/ReplicaSet/web-5d8f")),
    ],
)
async def test_group_page_explains_it(
    chromium: Chromium, group_journal: str, path: str, arguments: tuple[str, ...]
) -> None:
    wanted = await shown(group_journal, *arguments)
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open(path)
        assert await tab.text("#answer") == wanted["sentence"]
        assert [[*row[:3], row[4]] for row in await tab.rows("#members")] == [
            [one["name"], words(one["state"]), one["node"], str(one["attempts"] or "")]
            for one in wanted["members"]
        ]
        reasons = await tab.rows("#reasons")
        assert [row[0] for row in reasons] == [str(one["pods"]) for one in wanted["reasons"]]
        assert all(
            row[3].startswith(one["reason"])
            for row, one in zip(reasons, wanted["reasons"], strict=True)
        )
        if wanted["job"]:
            assert await tab.texts("#job li") == wanted["job"]["reasons"]
        first = wanted["members"][0]
        await tab.page.locator("#members a").first.click()
        await tab.ready()
        assert await tab.text("h1") == named(first)


async def test_search_leads_to_gangs_and_owners(chromium: Chromium, group_journal: str) -> None:
    async with browsing(chromium, group_journal) as (tab, _):
        for text, title in (("training", "Gang ml/training"), ("big", "StatefulSet shop/big")):
            await tab.open(f"/search?q={text}")
            name = "training" if text == "training" else "StatefulSet/big"
            await tab.page.get_by_role("link", name=name, exact=True).click()
            await tab.ready()
            assert await tab.text("h1") == title


async def test_queues_page_shows_shares_and_order(chromium: Chromium, group_journal: str) -> None:
    wanted = (await shown(group_journal, "queues"))["sessions"][0]
    history = await shown(group_journal, "shares")
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/queues")
        usages = [queue["usage"] for queue in wanted["queues"]]
        names = [one["name"] + " overused" * one["overused"] for one in usages]
        assert await tab.texts(".shares th[scope=row]") == names
        cpu = {
            queue["usage"]["name"]: next(
                one for one in queue["usage"]["resources"] if one["resource"] == "cpu"
            )
            for queue in wanted["queues"]
            if queue["usage"]["resources"]
        }
        rows = [row for row in await tab.rows(".shares") if "cpu" in row]
        for row, one in zip(rows, cpu.values(), strict=True):
            place = row.index("cpu")
            amounts = [float(text) for text in row[place + 1 : place + 4]]
            expected = [one[name] / 1000 for name in ("deserved", "allocated", "requested")]
            assert amounts == pytest.approx(expected)
        order = [[row[0], row[1], row[5]] for row in await tab.rows(".order")]
        assert order == [
            [job["queue"], str(job["position"]), job["orderReason"]] for job in wanted["jobs"]
        ]
        parts = [part for session in history["sessions"] for part in session["parts"]]
        shown_parts = [row[-4:] for row in await tab.rows("#decided")]
        assert shown_parts == [
            [
                one["operation"],
                one["group"] or one["firstPod"],
                str(one["pods"]),
                one["beneficiary"],
            ]
            for one in parts
        ]
        await tab.screenshot("queues")


async def test_chart_of_a_queue_is_its_history(chromium: Chromium, group_journal: str) -> None:
    history = await shown(group_journal, "shares")
    own = [point for point in history["points"] if point["queue"] == "research"]
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/queues")
        await tab.page.locator("#queue").select_option(label="research")
        await tab.page.locator("#points-details summary").click()
        rows = await tab.rows("#points")
        assert [row[1] for row in rows] == [str(point["seq"]) for point in own]
        for row, point in zip(rows, own, strict=True):
            cpu = point["resources"].get("cpu", {"deserved": 0, "allocated": 0, "requested": 0})
            amounts = [float(text.replace(",", "")) for text in row[2:5]]
            expected = [cpu[name] / 1000 for name in ("deserved", "allocated", "requested")]
            assert amounts == pytest.approx(expected, abs=0.01)
        label = await tab.page.locator("#shares canvas").get_attribute("aria-label")
        last = own[-1]["resources"]["cpu"]["deserved"] / 1000
        assert label is not None
        assert label.startswith(f"deserved: last {last:g}, highest ")


async def test_timeline_has_a_row_for_each_pod(chromium: Chromium, group_journal: str) -> None:
    wanted = await shown(group_journal, "gang", "ml/training", "--timeline")
    async with browsing(chromium, group_journal) as (tab, client):
        answer = await client.get("/gangs/ml/training/timeline")
        await tab.open("/gangs/ml/training/timeline")
        names = await tab.page.locator("#timeline .row-name").all_text_contents()
        members = [pod["name"] for pod in wanted["pods"]]
        victims = [named(one["victim"]) for one in wanted["evictions"]]
        expected = [f"{name}ml/{name}" for name in members] + [f"{key}{key}" for key in victims]
        # Each has its full name as title. What is no pod of the group is an event.
        assert [name for name in names if name != "Events"] == expected
        spans = sum(len(member["spans"]) for member in answer["members"])
        bars = await tab.page.locator("#timeline .span").count()
        assert bars == spans + len(victims)
        assert [[row[1], row[2], row[3], row[4]] for row in await tab.rows("#causes")] == [
            [str(link["toSeq"]), link["kind"], link["toPod"], link["text"]]
            for link in wanted["causes"]
        ]
        for kind in ("released", "evicts", "freed"):
            assert await tab.page.locator(f"#timeline .link.{kind}").count() > 0, kind
        await tab.page.locator("#links").select_option("none")
        assert await tab.page.locator("#timeline .link").count() == 0
        await tab.page.locator("#links").select_option("")
        await tab.screenshot("gang-timeline")


async def test_row_of_the_timeline_marks_its_records(
    chromium: Chromium, group_journal: str
) -> None:
    wanted = await shown(group_journal, "gang", "ml/training", "--timeline")
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/gangs/ml/training/timeline")
        await tab.page.locator('[data-pod="ml/training-1"]').click(position={"x": 10, "y": 6})
        marked = await tab.page.locator("#causes tr.chosen").count()
        own = [one for one in wanted["causes"] if "ml/training-1" in (one["fromPod"], one["toPod"])]
        assert marked == len(own)
        await tab.page.locator("#causes tbody tr").first.locator("td").last.click()
        await expect(tab.page.locator("#timeline .row-back.chosen")).to_have_count(1)


@pytest.fixture
def wide_journal(tmp_path: Path) -> str:
    """A gang of 100 pods that are observed one after the other."""
    scenario = {
        **SCENARIO,
        "duration": "2m",
        "nodes": [SCENARIO["nodes"][0] | {"count": 30}],
        "objects": [native("wide", 100)],
        "pods": [
            pods("wide", 100, 1, "svc", namespace="ml", gang="wide", arrival=after("1s", "200ms"))
        ],
    }
    return str(record(tmp_path, scenario))


async def test_timeline_of_a_hundred_members_is_legible(
    chromium: Chromium, wide_journal: str
) -> None:
    """Rows do not overlap, and one line leads from the last member to all the others."""
    async with browsing(chromium, wide_journal) as (tab, client):
        answer = await client.get("/gangs/ml/wide/timeline")
        assert len(answer["pods"]) == 100
        await tab.open("/gangs/ml/wide/timeline")
        tops = await tab.page.locator("#timeline .row-name").evaluate_all(
            "names => names.map((name) => name.getBoundingClientRect().top)"
        )
        assert len(tops) >= 100
        gaps = {round(below - above) for above, below in pairwise(tops)}
        assert min(gaps) >= 14
        released = [one for one in answer["causes"] if one["kind"] == "released"]
        assert len(released) > 90
        assert await tab.page.locator("#timeline .link.released").count() == 1
        await tab.screenshot("gang-timeline-100")


async def test_overview_lists_pods_pending_longest(chromium: Chromium, group_journal: str) -> None:
    wanted = (await shown(group_journal, "pending", "--limit", "10"))["pods"]
    async with browsing(chromium, group_journal) as (tab, _):
        await tab.open("/")
        await expect(tab.page.locator("#pending tbody tr")).to_have_count(10)
        rows = await tab.rows("#pending")
        assert [row[0] for row in rows] == [named(one) for one in wanted]
        assert [row[2] for row in rows] == [words(one["state"]) for one in wanted]


async def test_pages_keep_their_time(chromium: Chromium, group_journal: str) -> None:
    async with browsing(chromium, group_journal) as (tab, client):
        seq = (await client.get("/evictions"))["evictions"][-1]["seq"]
        await tab.open(f"/gangs?seq={seq}")
        rows = {row[1]: row for row in await tab.rows("#gangs")}
        assert rows["ml/late"][2] != "complete"
        await tab.page.get_by_role("link", name="ml/late").click()
        await tab.ready()
        assert tab.page.url.endswith(f"/gangs/ml/late?seq={seq}")
        assert f"record {seq}" in await tab.text(".head")
        await tab.page.get_by_role("link", name="Timeline").click()
        await tab.ready()
        assert tab.page.url.endswith(f"/timeline?seq={seq}")
        await tab.open(f"/evictions?seq={seq}")
        [row] = await tab.rows("#evictions")
        assert row[5] == "decided"


async def test_no_serious_violation_of_accessibility(
    chromium: Chromium, group_journal: str
) -> None:
    found = {}
    async with browsing(chromium, group_journal) as (tab, _):
        for path in sample(PAGES):
            await tab.open(path)
            violations = await tab.violations_in_both_schemes()
            if violations:
                found[path] = violations
    assert found == {}


async def test_pages_of_groups_fit_on_a_phone(chromium: Chromium, group_journal: str) -> None:
    async with browsing(chromium, group_journal, Screen(*PHONE)) as (tab, _):
        for path in ("/gangs/ml/huge", "/gangs/ml/training/timeline", "/gangs", "/evictions"):
            await tab.open(path)
            width = await tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE[0], path


async def test_cluster_without_gangs_and_sessions_says_so(
    chromium: Chromium, demo_journal: str
) -> None:
    async with browsing(chromium, demo_journal) as (tab, _):
        await tab.open("/gangs")
        assert "The cluster has no gangs at this time" in await tab.text("main")
        await tab.open("/queues")
        assert "No batch sessions are configured" in await tab.text("main")
        await tab.open("/evictions?q=nothing")
        assert "No eviction matches" in await tab.text("main")


@pytest.fixture
async def hostile_journal(tmp_path: Path) -> str:
    """A gang and an eviction in which every name is markup."""
    recording = Recording()
    raw = {**native(HOSTILE, 2, HOSTILE)}
    raw["metadata"] = {**raw["metadata"], "uid": "g"}
    group = decode(GroupResource.POD_GROUPS, msgspec.json.encode(raw))
    assert isinstance(group, PodGroup)
    recording.see(node(HOSTILE, "4"), group)
    recording.see(pod(f"{HOSTILE}-low", "4", namespace=HOSTILE, priority=0))
    recording.bind(recording.decide())
    recording.turn(1.0)
    member: dict[str, Any] = {"schedulingGroup": {"podGroupName": HOSTILE}, "priority": 9}
    recording.see(*(pod(f"{HOSTILE}-{i}", "2", namespace=HOSTILE, **member) for i in range(2)))
    recording.decide()
    recording.turn(2.0)
    path = str(tmp_path / "hostile.db")
    async with open_journal(path) as store:
        await recording.store_in(store)
    return path


async def test_names_are_text_in_every_view(chromium: Chromium, hostile_journal: str) -> None:
    own = "/".join([quote(HOSTILE, safe="")] * 2)
    paths = ("/evictions", "/queues", "/gangs", f"/gangs/{own}", f"/gangs/{own}/timeline", "/")
    async with browsing(chromium, hostile_journal) as (tab, _):
        for path in paths:
            await tab.open(path)
            assert await tab.page.locator("main img").count() == 0, path
            if path != "/queues":
                await expect(tab.page.locator("main")).to_contain_text(HOSTILE)
        await tab.open(f"/evictions?q={quote(HOSTILE)}")
        assert len(await tab.rows("#evictions")) == 1


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/gangs/ml/trainin", 404, "did you mean ml/training?"),
        ("/gangs/ml/trainin/timeline", 404, "no pod of gang ml/trainin is in the journal"),
        ("/owners/shop/ReplicaSet/web-5d8", 404, "did you mean ReplicaSet/web-5d8f?"),
        ("/evictions?from=soon", 400, "soon"),
        ("/gangs?phase=late", 400, "is not one of complete"),
        ("/queues?at=2001-01-01T00:00:00Z", 404, "the journal begins at"),
    ],
)
async def test_bad_input_gets_a_page(
    chromium: Chromium, group_journal: str, path: str, status: int, text: str
) -> None:
    async with browsing(chromium, group_journal) as (tab, _):
        response = await tab.page.goto(tab.url + path)
        assert response is not None
        assert response.status == status
        assert text in await tab.text("[role=alert]")
        tab.problems = [one for one in tab.problems if f"{status} (" not in one]
