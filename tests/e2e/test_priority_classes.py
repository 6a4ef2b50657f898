"""PriorityClass endpoints: mutable and immutable fields by HTTP method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.daemon.world import world

_PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


@pytest.mark.parametrize("change", [{"value": 10}, {"preemptionPolicy": "Never"}])
async def test_value_and_preemption_policy_are_immutable(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async with world(tmp_path) as w, aiohttp.ClientSession(w.server.url) as session:
        created = w.cluster.create("priorityclasses", {"metadata": {"name": "p1"}, "value": 1})
        one = f"{_PATH}/p1"
        async with session.patch(one, json=change, headers=_STRATEGIC) as answer:
            assert answer.status == 422
            assert (await answer.json())["reason"] == "Invalid"
        async with session.put(one, json={**created, **change}) as answer:
            assert answer.status == 422
        assert w.cluster.get("priorityclasses", "p1") == created


async def test_description_is_mutable(tmp_path: Path) -> None:
    async with world(tmp_path) as w, aiohttp.ClientSession(w.server.url) as session:
        for name, value in (("p1", 1), ("p2", 2)):
            labels = {"e2e": "yes"}
            w.cluster.create(
                "priorityclasses", {"metadata": {"name": name, "labels": labels}, "value": value}
            )
        described = {"description": "updated"}
        async with session.patch(f"{_PATH}/p1", json=described, headers=_STRATEGIC) as answer:
            assert answer.status == 200
        second = {**w.cluster.get("priorityclasses", "p2"), **described}
        async with session.put(f"{_PATH}/p2", json=second) as answer:
            assert answer.status == 200
        async with session.get(_PATH, params={"labelSelector": "e2e=yes"}) as answer:
            found = (await answer.json())["items"]
        assert [(c["value"], c["description"]) for c in found] == [(1, "updated"), (2, "updated")]
        async with session.delete(_PATH, params={"labelSelector": "e2e=yes"}) as answer:
            assert answer.status == 200
        assert w.cluster.list("priorityclasses", labels="e2e=yes") == []
