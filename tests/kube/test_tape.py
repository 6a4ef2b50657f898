"""Tapes: recorded watches yield the changes of live ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from asched.kube.tape import Tape, TapeError
from asched.model.resources import Resource
from tests.kube.harness import View


def write_tape(path: Path, *lines: dict[str, Any]) -> Path:
    with gzip.open(path, "wt") as out:
        for line in lines:
            out.write(json.dumps(line) + "\n")
    return path


def feed(tape: Tape, view: View) -> None:
    for recorded in tape:
        view.put_changes((recorded.change,))


def entry(kind: str, item: Any, resource: str = "nodes") -> dict[str, Any]:
    return {"t": 1.5, "resource": resource, "type": kind, "object": item}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **more}


def alive_at_the_end(path: Path) -> dict[str, set[tuple[str, str]]]:
    """(key, uid) by plural, computed from the JSON."""
    alive: dict[str, dict[str, str]] = {}
    with gzip.open(path) as lines:
        for line in map(json.loads, lines):
            known = alive.setdefault(line["resource"], {})
            if line["type"] == "LISTED":
                known.clear()
            items = line["object"]["items"] if line["type"] == "LISTED" else [line["object"]]
            for item in items:
                meta = item["metadata"]
                if line["type"] == "DELETED":
                    known.pop(_key(meta))
                elif line["type"] != "BOOKMARK":
                    known[_key(meta)] = meta["uid"]
    return {plural: set(known.items()) for plural, known in alive.items()}


def _key(meta: dict[str, Any]) -> str:
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


def test_recorded_churn_ends_with_live_objects(shared_dir: Path) -> None:
    path = shared_dir / "tapes" / "churn-24.jsonl.gz"
    tape, view = Tape(path), View()
    feed(tape, view)
    expected = alive_at_the_end(path)
    assert expected["pods"]
    for resource in Resource:
        found = {(item.key, item.uid) for item in view.of(resource).values()}
        assert found == expected.get(resource.plural, set()), resource
    assert sum(decoder.counts.skipped for decoder in tape.decoders.values()) == 0


def test_tape_yields_lists_events_and_times(tmp_path: Path) -> None:
    path = write_tape(
        tmp_path / "tape.gz",
        entry("LISTED", {"metadata": {"resourceVersion": "1"}, "items": [node("a"), node("b")]}),
        entry("BOOKMARK", {"metadata": {"resourceVersion": "2"}}),
        entry("ADDED", node("c")),
        entry("DELETED", node("a")),
    )
    view = View()
    feed(Tape(path), view)
    assert view.names(Resource.NODES) == {"b", "c"}
    assert [recorded.at_s for recorded in Tape(path)] == [1.5] * 3


def test_undecodable_and_unwatched_objects_are_skipped(tmp_path: Path) -> None:
    path = write_tape(
        tmp_path / "tape.gz",
        entry("ADDED", node("a", spec=7)),
        entry("ADDED", node("secret"), resource="secrets"),
        entry("ADDED", node("secret2"), resource="secrets"),
        entry("ADDED", node("b")),
    )
    view, tape = View(), Tape(path)
    with capture_logs() as logs:
        feed(tape, view)
    assert view.names(Resource.NODES) == {"b"}
    assert tape.decoders[Resource.NODES].counts.skipped == 1
    assert [log["event"] for log in logs] == ["object skipped", "resource skipped"]


NO_TAPES = {
    "no gzip": b"plain text",
    "no json": gzip.compress(b"no json\n"),
    "fields missing": gzip.compress(b'{"t":1}\n'),
    "unknown type": gzip.compress(json.dumps(entry("STRANGE", node("a"))).encode()),
    "list without items": gzip.compress(json.dumps(entry("LISTED", {"items": 3})).encode()),
    "cut short": gzip.compress(json.dumps(entry("ADDED", node("a"))).encode())[:-9],
}


@pytest.mark.parametrize("what", NO_TAPES)
def test_invalid_tape_raises_one_line_error(what: str, tmp_path: Path) -> None:
    path = tmp_path / "tape.gz"
    path.write_bytes(NO_TAPES[what])
    with pytest.raises(TapeError) as caught:
        feed(Tape(path), View())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_tape_raises_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match=r"/none: cannot be read: No such file or directory$"):
        feed(Tape(tmp_path / "none"), View())
