"""Gangs, owners, queues and evictions in the API are what ``asched show`` prints."""

from __future__ import annotations

import html
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asched.audit.groups import GroupName, explained
from asched.audit.visibility import EVERYTHING
from asched.journal.opening import open_journal
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState
from asched.state.session_records import EvictionDecided, SessionExecuted
from tests.audit.recording import Recording, pod
from tests.ui.serving import Client, cli, run_command, ui_on
from tests.ui.test_answers import csv_rows, folded

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(recorded_groups: Path) -> AsyncIterator[Client]:
    """One server for all tests of the journal: they only read."""
    async with ui_on(str(recorded_groups)) as served:
        await served.caught_up()
        yield served


async def shown(journal: str, *arguments: str) -> Any:
    return await cli("show", *arguments, "--journal", journal)


async def answers(journal: str, path: str, **query: object) -> Any:
    async with ui_on(journal) as client:
        await client.caught_up()
        return await client.get(path, **query)


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/evictions", ["evictions"]),
        ("/queues", ["queues"]),
        ("/gangs", ["gangs"]),
        ("/pending", ["pending"]),
        ("/gangs/ml/training", ["gang", "ml/training"]),
        ("/gangs/ml/huge", ["gang", "ml/huge"]),
        ("/gangs/batch/stuck", ["gang", "batch/stuck"]),
        ("/owners/shop/ReplicaSet/web-5d8f", ["owner", "shop/ReplicaSet/web-5d8f"]),
        ("/owners/batch/Job/solo", ["owner", "batch/Job/solo"]),
    ],
)
async def test_answer_is_that_of_the_command(
    client: Client, path: str, arguments: list[str]
) -> None:
    assert await client.get(path) == await shown(client.journal, *arguments)


async def test_answers_are_typed_as_declared(client: Client) -> None:
    for name, path in (
        ("evictions", "/evictions"),
        ("queues", "/queues"),
        ("queue_history", "/queues/history"),
        ("gangs", "/gangs"),
        ("gang", "/gangs/batch/stuck"),
        ("gang_timeline", "/gangs/ml/training/timeline"),
        ("owner", "/owners/shop/StatefulSet/big"),
        ("owner_timeline", "/owners/shop/StatefulSet/big/timeline"),
        ("pending", "/pending"),
    ):
        await client.typed(name, path)
        assert await csv_rows(client, path), path


async def test_every_eviction_of_the_journal_is_listed(client: Client) -> None:
    _, records = await folded(client.journal)
    decided = [
        victim.key for one in records if isinstance(one, r.Rejected) for victim in one.victims
    ]
    decided += [one.key for one in records if isinstance(one, EvictionDecided)]
    released = [
        one.key
        for one in records
        if isinstance(one, r.PermitRejected) and "earlier gang" in one.message
    ]
    found = (await client.get("/evictions"))["evictions"]
    names = [f"{one['victim']['namespace']}/{one['victim']['name']}" for one in found]
    assert sorted(names) == sorted(decided + released)
    kinds = {one["kind"] for one in found}
    assert kinds == {"preemption", "preempt", "reclaim", "gang"}
    for one in found:
        record = records[one["seq"] - 1]
        if isinstance(record, r.Rejected):
            assert one["beneficiary"]["name"] == record.key.split("/")[1]
            assert one["by"] == "DefaultPreemption"
            assert one["node"] == record.nominated_node
        if isinstance(record, EvictionDecided):
            assert (one["kind"], one["node"]) == (record.reason.value, record.node)
            assert one["by"].endswith(f"of session {record.session} of kube-batch")


async def test_eviction_says_whether_the_beneficiary_started(client: Client) -> None:
    state, _ = await folded(client.journal)
    found = (await client.get("/evictions"))["evictions"]
    for one in found:
        pod = one["beneficiary"]
        entry = state.entry(f"{pod['namespace']}/{pod['name']}", pod["uid"])
        bound = entry is not None and entry.placement_state is PlacementState.BOUND
        assert (one["outcome"] == "started") is bound
        assert (one["waitS"] is not None) is bound
        if bound and entry is not None:
            assert one["startedOn"] == entry.node
    assert {one["outcome"] for one in found} == {"started", "waiting"}
    waits = {one["victim"]["name"]: one["waitS"] for one in found if one["kind"] != "gang"}
    assert waits["filler-0"] == 30.0  # its grace period
    assert waits["meek-2"] == 5.0


async def test_evictions_are_filtered_and_as_of_a_record(client: Client) -> None:
    every = (await client.get("/evictions"))["evictions"]
    reclaimed = await client.get("/evictions", kind="reclaim")
    of_gang = (await client.get("/evictions", q="ML/TRAINING"))["evictions"]
    first = every[-1]
    period = await client.get("/evictions", from_=first["at"], to=first["at"])
    then = await client.get("/evictions", seq=first["seq"])
    limited = await client.get("/evictions", limit=2)
    rows = await csv_rows(client, "/evictions", kind="reclaim")
    assert {one["kind"] for one in reclaimed["evictions"]} == {"reclaim"}
    assert len(of_gang) == 4
    assert {one["beneficiary"]["gang"] for one in of_gang} == {"ml/training"}
    assert period["evictions"] == [first]
    assert then["total"] == 1
    assert (then["evictions"][0]["result"], first["result"]) == ("decided", "ended")
    assert then["evictions"][0]["outcome"] == "waiting"
    assert (len(limited["evictions"]), limited["total"]) == (2, len(every))
    assert [row["victim.name"] for row in rows] == [
        one["victim"]["name"] for one in reclaimed["evictions"]
    ]


async def test_command_filters_by_text_and_period(group_journal: str) -> None:
    every = (await shown(group_journal, "evictions"))["evictions"]
    of_gang = (await shown(group_journal, "evictions", "ml/late"))["evictions"]
    at = every[3]["at"]
    until = (await shown(group_journal, "evictions", "--until", at))["evictions"]
    since = (await shown(group_journal, "evictions", "--since", every[0]["at"]))["evictions"]
    assert {one["kind"] for one in of_gang} == {"gang", "preemption"}
    assert 0 < len(until) < len(every)  # a batch of a simulation covers some time
    assert [one["seq"] for one in until] == [one["seq"] for one in every[-len(until) :]]
    assert all(one["at"] <= at for one in until)
    assert since == [one for one in every if one["at"] >= every[0]["at"]]
    code, out, _ = await run_command("show", "evictions", "--journal", group_journal)
    assert code == 0
    assert f"{len(every)} eviction(s)" in out


async def test_shares_over_time_are_those_of_the_command(client: Client) -> None:
    found = await client.get("/queues/history")
    assert found == await shown(client.journal, "shares")
    queues = {point["queue"] for point in found["points"]}
    assert queues == {"research", "production", "default", "solo"}
    last = {point["queue"]: point for point in found["points"]}
    now = await client.get("/queues", seq=last["research"]["seq"])
    for queue in now["sessions"][0]["queues"]:
        usage, point = queue["usage"], last[queue["usage"]["name"]]
        assert usage["share"] == point["share"]
        for one in usage["resources"]:
            amounts = point["resources"][one["resource"]]
            assert amounts["deserved"] == one["deserved"]
            assert amounts["allocated"] == one["allocated"]
            assert amounts["requested"] == one["requested"]


async def test_queue_agrees_with_the_explanation_of_its_job(client: Client) -> None:
    """``asched explain --job`` opens the same session."""
    job = await cli("explain", "--job", "batch/stuck", "--journal", client.journal)
    state_seq = job["seq"] - 1
    found = await client.get("/queues", seq=state_seq)
    [session] = found["sessions"]
    [own] = [one for one in session["jobs"] if one["job"] == "batch/stuck"]
    ahead = [
        one["job"]
        for one in session["jobs"]
        if one["queue"] == own["queue"] and one["position"] < own["position"]
    ]
    assert ahead == job["ahead"]
    assert own["minAvailable"] == job["minAvailable"]
    assert all(one["orderReason"] for one in session["jobs"] if one["position"] > 1)


async def test_who_went_first_is_in_the_order_of_the_records(client: Client) -> None:
    _, records = await folded(client.journal)
    found = await client.get("/queues/history", limit=500)
    for session in found["sessions"]:
        executed = records[session["seq"] - 1]
        assert isinstance(executed, SessionExecuted)
        assert session["number"] == executed.number
        firsts = [part["firstSeq"] for part in session["parts"]]
        assert firsts == sorted(firsts)
        assert firsts[0] > session["seq"]
    placed = sum(
        part["pods"]
        for session in found["sessions"]
        for part in session["parts"]
        if part["operation"] == "bind"
    )
    assert placed == sum(isinstance(one, r.Assigned) and one.session > 0 for one in records)


async def test_gangs_are_counted_and_ordered(client: Client) -> None:
    state, _ = await folded(client.journal)
    found = (await client.get("/gangs"))["gangs"]
    for gang in found:
        own = [
            entry
            for key, entry in state.pods.items()
            if key.startswith(f"{gang['namespace']}/{gang['name']}-")
        ]
        bound = sum(entry.placement_state is PlacementState.BOUND for entry in own)
        assert (gang["pods"], gang["bound"]) == (len(own), bound)
        assert (gang["phase"] == "complete") == (bound >= gang["minimum"])
    one_by_one = [gang for gang in found if gang["position"]]
    assert [gang["position"] for gang in one_by_one] == [*range(1, len(one_by_one) + 1)]
    assert [gang["name"] for gang in one_by_one] == ["early", "huge"]
    assert one_by_one[1]["orderReason"] == "priority 0 below 10"
    pending = await client.get("/gangs", phase="pending", q="production")
    assert {gang["queue"] for gang in pending["gangs"]} == {"production"}
    assert {gang["phase"] for gang in pending["gangs"]} == {"pending"}


async def test_gang_waits_on_permit_for_its_members(client: Client) -> None:
    """At a time at which members have a node and wait for the others."""
    _, records = await folded(client.journal)
    seq = next(
        seq
        for seq, one in enumerate(records, 1)
        if isinstance(one, r.Assigned) and one.permit_waits and one.key.startswith("ml/late-")
    )
    gang = await client.get("/gangs/ml/late", seq=seq)
    assert (gang["gang"]["phase"], gang["gang"]["waiting"]) == ("waiting", 1)
    assert gang["sentence"].startswith("The gang waits for members: 0 of 3 pods are bound")
    assert gang["gang"]["waitedS"] == 0


async def test_sentence_names_the_reason_of_most_pods(client: Client) -> None:
    sentences = {
        path: (await client.get(path))["sentence"]
        for path in (
            "/gangs/ml/training",
            "/gangs/ml/huge",
            "/owners/shop/ReplicaSet/web-5d8f",
            "/owners/shop/StatefulSet/big",
        )
    }
    big = await client.get("/owners/shop/StatefulSet/big")
    assert sentences["/gangs/ml/training"] == (
        "The gang is complete: all 4 pods are bound, 3 are required."
    )
    assert sentences["/gangs/ml/huge"].endswith("; 5 wait for the gang.")
    assert "1 of 6 pending pods: 0/11 nodes are available" in sentences["/gangs/ml/huge"]
    assert sentences["/owners/shop/ReplicaSet/web-5d8f"].startswith(
        "8 of 12 pods are bound; all 4 pending pods: 0/11 nodes are available: "
    )
    assert big["states"] == {"unschedulable": 2}
    assert [reason["pods"] for reason in big["reasons"]] == [2]
    assert big["reasons"][0]["examples"] == ["big-0", "big-1"]


async def test_owner_s_pods_all_deleted(client: Client) -> None:
    """The page of a finished owner is an answer, not an error."""
    found = await client.view.ask(_without_pods)
    assert found.release(EVERYTHING) == "All 3 pods were deleted or have finished."


async def _without_pods(reader: Any) -> str:
    name, gone = GroupName("Job", "batch", "solo"), reader.index.owners["batch/Job/solo"].pods
    return explained(ClusterState(), 1, name, len(gone)).sentence


async def test_timeline_of_a_gang_has_its_causes(client: Client) -> None:
    _, records = await folded(client.journal)
    found = await client.get("/gangs/ml/training/timeline")
    history = await shown(client.journal, "gang", "ml/training", "--timeline")
    assert found["pods"] == history["pods"]
    assert found["causes"] == history["causes"]
    assert [pod["name"] for pod in found["members"]] == [f"training-{i}" for i in range(4)]
    of_kind: dict[str, list[Any]] = {}
    for link in found["causes"]:
        of_kind.setdefault(link["kind"], []).append(link)
    last = max(
        seq
        for seq, one in enumerate(records, 1)
        if isinstance(one, r.Assigned) and one.key.startswith("ml/training-") and one.permit_waits
    )
    allowed = {one.key for one in records if isinstance(one, r.PermitAllowed)} & {
        f"ml/training-{i}" for i in range(4)
    }
    assert {link["toPod"] for link in of_kind["released"]} == allowed
    assert {link["fromSeq"] for link in of_kind["released"]} == {last}
    assert {link["toPod"] for link in of_kind["evicts"]} == {
        f"shop/web-{i}" for i in (8, 9, 10, 11)
    }
    assert len(of_kind["freed"]) == 4
    for link in of_kind["freed"]:
        assert isinstance(records[link["toSeq"] - 1], r.Assigned)
        assert isinstance(records[link["fromSeq"] - 1], r.ObjectDeleted)
    for link in found["causes"]:
        assert link["fromSeq"] <= link["toSeq"]


async def test_timeline_of_a_gang_that_yields(client: Client) -> None:
    found = await client.get("/gangs/ml/late/timeline")
    kinds = {span["kind"] for member in found["members"] for span in member["spans"]}
    assert {"permit", "unschedulable", "running"} <= kinds
    victims = {one["victim"]["name"] for one in found["evictions"]}
    assert victims == {"filler-0"}
    early = await client.get("/gangs/ml/early/timeline")
    assert {one["kind"] for one in early["evictions"]} == {"gang"}


async def test_timeline_is_cut_at_the_moment(client: Client) -> None:
    whole = await client.get("/gangs/ml/training/timeline")
    seq = whole["causes"][3]["toSeq"]
    part = await client.get("/gangs/ml/training/timeline", seq=seq)
    assert all(entry["seq"] <= seq for pod in part["pods"] for entry in pod["entries"])
    assert part["until"] < whole["until"]
    assert 0 < len(part["causes"]) < len(whole["causes"])


async def test_timeline_of_a_group_has_the_newest_entries(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await client.get("/gangs/ml/training/timeline")
    monkeypatch.setattr("asched.ui.groups.MAX_ENTRIES", 4)
    found = await answers(client.journal, "/gangs/ml/training/timeline")
    before = [pod["entries"] for pod in whole["pods"]]
    assert [pod["entries"] for pod in found["pods"]] == [entries[-4:] for entries in before]
    assert whole["omittedEntries"] == 0
    assert found["omittedEntries"] == sum(len(entries) - 4 for entries in before) > 0
    assert 0 < len(found["causes"]) < len(whole["causes"])


async def test_pods_pending_longest(client: Client) -> None:
    state, _ = await folded(client.journal)
    found = await client.get("/pending", limit=5)
    waits = [pod["waitedS"] for pod in found["pods"]]
    assert waits == sorted(waits, reverse=True)
    assert len(waits) == 5
    pending = [e for e in state.pods.values() if e.placement_state is PlacementState.PENDING]
    assert found["total"] == len(pending)
    assert all(pod["reason"] for pod in found["pods"])


async def test_pod_links_to_its_evictions(client: Client) -> None:
    victim = await client.get("/pods/shop/web-8")
    winner = await client.get("/pods/ml/training-0")
    session = await client.get("/pods/batch/stuck-0")
    assert (victim["evicted"], victim["evictedFor"]) == (1, 0)
    assert (winner["evicted"], winner["evictedFor"]) == (0, 1)
    assert session["status"]["state"] == "awaitsSession"


async def test_pod_of_batch_sessions_has_a_span_until_it_is_assigned(client: Client) -> None:
    placed = await client.get("/pods/batch/solo-0/timeline")
    waiting = await client.get("/pods/batch/solo-1/timeline")
    assert [span["kind"] for span in placed["spans"]] == ["awaitsSession", "binding", "running"]
    assert placed["spans"][0]["endSeq"] == placed["spans"][1]["beginSeq"]
    [span] = waiting["spans"]
    assert (span["kind"], span["end"]) == ("awaitsSession", None)


@pytest.mark.parametrize(
    ("path", "query", "status", "error"),
    [
        ("/gangs/ml/trainin", {}, 404, "no pod of gang ml/trainin exists at record"),
        ("/gangs/ml/trainin/timeline", {}, 404, "no pod of gang ml/trainin is in the journal"),
        ("/owners/shop/ReplicaSet/nope", {}, 404, "no pod of shop/ReplicaSet/nope exists"),
        ("/gangs", {"phase": "x"}, 400, "phase: 'x' is not one of complete, waiting, "),
        ("/evictions", {"kind": "x"}, 400, "kind: 'x' is not one of preemption, preempt, "),
        ("/evictions", {"from": "1h", "to": "2h"}, 400, "to: before from"),
        ("/evictions", {"from": "soon"}, 400, '"soon" is not a time'),
        ("/queues", {"seq": "99999"}, 404, "there is no record 99999"),
        ("/pending", {"limit": "0"}, 400, "limit: '0' is not a number from 1 on"),
    ],
)
async def test_bad_input_gets_one_line(
    client: Client, path: str, query: dict[str, str], status: int, error: str
) -> None:
    found = await client.fails(path, **query)
    assert found[0] == status
    assert error in found[1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["gang", "training"], "'training' is not a gang; expected NAMESPACE/NAME"),
        (["gang", "ml/trainin"], "did you mean ml/training?"),
        (["gang", "ml/trainin", "--timeline"], "no pod of gang ml/trainin is in the journal"),
        (["owner", "solo"], "'solo' is not an owner; expected KIND/NAME"),
        (["owner"], "give the name of the group"),
        (["gangs", "--at", "2020-01-01T00:00:00Z"], "the journal has no records up to that time"),
    ],
)
async def test_command_reports_bad_input(
    group_journal: str, arguments: list[str], error: str
) -> None:
    code, _, err = await run_command("show", *arguments, "--journal", group_journal)
    assert code != 0
    assert error in err
    assert len(err.strip().splitlines()) == 1


async def test_cluster_without_sessions_and_gangs(demo_journal: str) -> None:
    async with ui_on(demo_journal) as client:
        await client.caught_up()
        queues = await client.get("/queues")
        gangs = await client.get("/gangs")
        history = await client.get("/queues/history")
        evictions = await client.get("/evictions")
    assert (queues["sessions"], gangs["gangs"], history["points"]) == ([], [], [])
    assert queues["scheduling"]["gated"] > 0
    assert evictions["evictions"] == (await shown(demo_journal, "evictions"))["evictions"]


async def test_active_pods_are_listed_in_their_order(tmp_path: Path) -> None:
    recording = Recording()
    recording.see(*(pod(f"p{i}", "1", priority=i % 3) for i in range(30)))
    recording.turn(1.0)
    url = str(tmp_path / "journal.db")
    async with open_journal(url) as store:
        await recording.store_in(store)
    found = await answers(url, "/queues")
    keys = [f"{one['namespace']}/{one['name']}" for one in found["active"]]
    queue = recording.state.queue
    assert found["scheduling"]["active"] == 30
    assert [one["position"] for one in found["active"]] == [
        queue.position_in_active(key) for key in keys
    ]
    assert len(keys) == 20
    priorities = [one["priority"] for one in found["active"]]
    assert priorities == sorted(priorities, reverse=True)


async def test_dominant_reason_is_that_of_the_command(client: Client) -> None:
    explained = await cli("explain", "--group", "ml/huge", "--journal", client.journal)
    found = await client.get("/gangs/ml/huge/why")
    # The page does not repeat the last attempt.
    assert found == {**explained, "reproduced": None}
    assert found["reason"] == "resources"
    assert found["domains"]
    assert found["changes"]


async def test_reason_of_a_batch_job_is_that_of_its_session(client: Client) -> None:
    found = await client.get("/gangs/batch/stuck/why")
    assert (found["mode"], found["reason"]) == ("batchSession", "batchSession")
    assert found["sentence"] == found["job"]["reasons"][0]


async def test_pod_names_the_reason_of_its_group_first(client: Client) -> None:
    pod = await client.get("/pods/ml/huge-0")
    assert pod["group"]["name"] == "huge"
    assert pod["sentence"] == f"The pod waits for its PodGroup ml/huge: {pod['group']['sentence']}."


async def test_pages_show_the_reason_of_a_group(client: Client) -> None:
    why = await client.get("/gangs/ml/huge/why")
    pod = await client.get("/pods/ml/huge-0")
    texts = {}
    for path in ("/gangs/ml/huge", "/pods/ml/huge-0", "/gangs/ml/training"):
        async with client.session.get(path) as response:
            assert response.status == 200
            texts[path] = html.unescape(await response.text())
    assert (await client.fails("/gangs/ml/unknown/why"))[0] == 404
    assert why["sentence"] in texts["/gangs/ml/huge"]
    for part in (*why["changes"], *why["domains"]):
        assert part.get("summary", part.get("lacks")) in texts["/gangs/ml/huge"]
    assert pod["group"]["sentence"] in texts["/pods/ml/huge-0"]
    assert "runs: 4 of 4 pods have a node" in texts["/gangs/ml/training"]
