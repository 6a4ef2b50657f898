"""Answers about shadow mode: what ``asched shadow`` reports."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from asched.journal.opening import open_journal
from asched.pricing.prices import Prices, parse_prices, read_prices
from asched.state.records import AnyRecord, ShadowCompared
from tests.audit.record_histories import record_shadow, write_turns, written_tape
from tests.shadow.tapes import TapeWriter, play
from tests.ui.serving import cli, ui_on

HOSTILE = "<img src=x onerror=alert(1)>"


class ShadowFiles(NamedTuple):
    tape: Path
    journal: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ShadowFiles:
    """Recorded once: tests only read them."""
    folder = tmp_path_factory.mktemp("shadow")
    tape, journal = written_tape(folder), folder / "shadow.db"
    anyio.run(record_shadow, tape, journal)
    return ShadowFiles(tape, str(journal))


def without_own_fields(difference: dict[str, Any]) -> dict[str, Any]:
    """A difference without what only a journal, or only the command, has."""
    own = ("seq", "at", "nodes", "podDifference")
    return {k: v for k, v in difference.items() if k not in own}


async def test_report_is_that_of_the_command(files: ShadowFiles, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    # One price for nodes of different sizes.
    file.write_text(
        "{apiVersion: asched.dev/v1, kind: Prices, currency: EUR, resources: {cpu: 1},"
        " nodes: [{perHour: 1}]}"
    )
    printed = await cli("shadow", "--tape", str(files.tape), "--prices", str(file))
    async with ui_on(files.journal, prices=read_prices(file)) as client:
        await client.caught_up()
        found = await client.typed("shadow", "/shadow")
        answer = await client.get("/shadow")
        details = [
            await client.get(f"/shadow/{difference['seq']}") for difference in answer["differences"]
        ]
        priced = next(one for one in details if one["difference"].get("podDifference"))
        async with client.session.get(f"/shadow/{priced['difference']['seq']}") as response:
            page = await response.text()
        async with client.session.get("/shadow") as response:
            overview = await response.text()
    assert found.shadow
    assert found.bindings.compared == 32
    for name in ("bindings", "messages", "soleBest", "differencesLeftOut"):
        assert answer[name] == printed[name]
    costs = answer["costs"]
    assert costs == printed["costs"]
    assert costs["disagreements"] > 1
    difference = f"{costs['theirsPerHour'] - costs['oursPerHour']:+,.4f} EUR"
    assert f"a difference of {difference}." in overview
    assert len(answer["differences"]) > 5
    assert [*map(without_own_fields, answer["differences"])] == [
        *map(without_own_fields, printed["differences"])
    ]
    assert [one["difference"].get("nodes", []) for one in details] == [
        difference.get("nodes", []) for difference in printed["differences"]
    ]
    assert [one["difference"].get("podDifference") for one in details] == [
        difference.get("podDifference") for difference in printed["differences"]
    ]
    assert f"costs {priced['difference']['podDifference']:+,.4f} EUR by the hour" in page
    sums = {one["cause"]: one["bindings"] + one["messages"] for one in answer["causes"]}
    assert sum(sums.values()) == len(answer["differences"])


async def test_report_with_a_kept_index_is_that_without(
    files: ShadowFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the journal is indexed, the rest after a restart."""
    async with ui_on(files.journal) as client:
        await client.caught_up()
        fresh, seq = await client.get("/shadow"), await client.head()
        wanted = [await client.get("/shadow", seq=one) for one in range(1, seq, 7)]
    part = tmp_path / "part.db"
    await _copied(files.journal, str(part), 1, seq * 2 // 3)
    for url in (str(part), str(part)):
        async with ui_on(url, index_dir=tmp_path / "index") as client:
            await client.caught_up()
            partial = await client.get("/shadow")
    assert partial["bindings"]["compared"] > 0
    await _copied(files.journal, str(part), seq * 2 // 3 + 1, seq)
    async with ui_on(str(part), index_dir=tmp_path / "index") as client:
        await client.caught_up()
        assert await client.get("/shadow") == fresh
    monkeypatch.setattr("asched.ui.index.JournalIndex.apply", None)
    async with ui_on(str(part), index_dir=tmp_path / "index") as client:
        await client.caught_up()
        assert [await client.get("/shadow", seq=one) for one in range(1, seq, 7)] == wanted


async def test_costs_with_a_kept_index_are_those_of_the_prices(
    files: ShadowFiles, tmp_path: Path
) -> None:
    """The index keeps costs. With other prices it is built again."""
    part, index = tmp_path / "part.db", tmp_path / "index"
    async with open_journal(files.journal, read_only=True) as store:
        seq = (await store.head()).seq
    text = "{apiVersion: asched.dev/v1, kind: Prices, resources: {cpu: %d}, nodes: [{perHour: 1}]}"
    prices, others = (parse_prices(text % cpu, "prices") for cpu in (1, 2))
    others = msgspec.structs.replace(others, nodes=())

    async def costs(url: str, found: Prices | None, folder: Path | None = None) -> Any:
        async with ui_on(url, index_dir=folder, prices=found) as client:
            await client.caught_up()
            return (await client.get("/shadow"))["costs"]

    await _copied(files.journal, str(part), 1, seq * 2 // 3)
    before = await costs(str(part), prices, index)
    await _copied(files.journal, str(part), seq * 2 // 3 + 1, seq)
    whole = await costs(str(part), prices, index)
    assert whole == await costs(files.journal, prices)
    assert whole["disagreements"] > before["disagreements"] > 0
    dearer = await costs(str(part), others, index)
    assert dearer == await costs(files.journal, others)
    assert dearer["theirsPerHour"] != whole["theirsPerHour"]
    assert await costs(str(part), None, index) is None
    assert await costs(str(part), prices, index) == whole


async def _copied(source: str, target: str, first: int, last: int) -> None:
    """Append the records ``first`` to ``last`` of a journal to another one, batch by batch."""
    async with open_journal(source, read_only=True) as store:
        records = [stored async for stored in store.read(first - 1, last)]
    async with open_journal(target) as store:
        await store.claim("test", claimed_at_ns=records[0].written_at_ns)
        for at_ns, batch in groupby(records, lambda stored: stored.written_at_ns):
            await store.append([stored.record for stored in batch], written_at_ns=at_ns)


async def test_report_of_the_past(files: ShadowFiles) -> None:
    """At each record, what had been compared and explained until then."""
    async with open_journal(files.journal, read_only=True) as store:
        stored = [one async for one in store.read()]
    compared = [one for one in stored if isinstance(one.record, ShadowCompared)]
    async with ui_on(files.journal) as client:
        await client.caught_up()
        for number, one in enumerate(compared, 1):
            found = await client.get("/shadow", seq=one.seq)
            assert found["bindings"]["compared"] + found["messages"]["compared"] == number
            unknown = [d for d in found["differences"] if not d.get("explained")]
            assert len(unknown) == found["unexplainedYet"]
        assert not found["differences"][-1].get("explained")


async def test_filters_and_table(files: ShadowFiles) -> None:
    async with ui_on(files.journal) as client:
        await client.caught_up()
        everything = await client.get("/shadow")
        cause = everything["causes"][0]
        found = await client.get("/shadow", cause=cause["cause"])
        assert len(found["differences"]) == cause["bindings"] + cause["messages"]
        named = await client.get("/shadow", pod="huge")
        assert {one["pod"] for one in named["differences"]} == {"default/huge"}
        status, error, _ = await client.fails("/shadow", cause="weather")
        assert (status, error.partition(":")[0]) == (400, "cause")
        async with client.session.get("/api/v1/shadow?format=csv") as response:
            rows = [*csv.DictReader(io.StringIO(await response.text()))]
        assert len(rows) == len(everything["differences"])
        status, error, _ = await client.fails("/shadow/1")
        assert (status, error) == (404, "record 1 is not a disagreement with kept details")


async def test_journal_of_a_scheduler_has_no_report(demo_journal: str) -> None:
    async with ui_on(demo_journal) as client:
        await client.caught_up()
        found = await client.get("/shadow")
        async with client.session.get("/shadow") as response:
            text = await response.text()
    assert (found["shadow"], found["bindings"]["compared"]) == (False, 0)
    assert "This is not the journal of a shadow" in text


async def test_second_start_keeps_what_was_found(tmp_path: Path) -> None:
    """Numbers start again; an open disagreement of the first run stays open."""
    tape = TapeWriter()
    tape.node("big", "8")
    tape.node("small", "2")
    tape.pod("p")
    tape.bind("p", "small")
    records, _ = play(tape.write(tmp_path / "tape.gz"))
    explained = [one for one in records if isinstance(one, msgspec.Struct)]
    first = [one for one in explained if type(one).__name__ != "ShadowExplained"]
    again = [one for one in first if type(one).__name__ == "EngineStarted"]
    both: list[AnyRecord] = [*first, *again]
    path = tmp_path / "twice.db"
    await write_turns(both, path)
    async with ui_on(str(path)) as client:
        await client.caught_up()
        found = await client.get("/shadow")
    assert (found["bindings"]["compared"], found["unexplainedYet"]) == (1, 1)


@pytest.fixture
async def hostile(tmp_path: Path) -> str:
    tape = TapeWriter()
    tape.node("big", "8")
    tape.node("small", "2")
    tape.pod(HOSTILE)
    tape.bind(HOSTILE, "small")
    path = tmp_path / "hostile.db"
    await record_shadow(tape.write(tmp_path / "tape.gz"), path)
    return str(path)


async def test_names_are_text(hostile: str) -> None:
    async with ui_on(hostile) as client:
        await client.caught_up()
        [difference] = (await client.get("/shadow"))["differences"]
        assert difference["pod"] == f"default/{HOSTILE}"
        for path in ("/shadow", f"/shadow/{difference['seq']}", "/shadow?pod=%3Cimg"):
            async with client.session.get(path) as response:
                assert response.status == 200
                assert "<img" not in await response.text()
