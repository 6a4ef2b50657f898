"""Lookup of pods by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from asched.audit.lookup import AuditError, PodName, find_pod
from asched.journal.memory import MemoryStore
from tests.audit.recording import Recording, pod


class ListingStore(MemoryStore):
    """Counts how often all pods are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    async def subjects(self, kind: str) -> Sequence[str]:
        self.listed += 1
        return await super().subjects(kind)


async def a_journal() -> ListingStore:
    recording = Recording()
    recording.see(pod("web"), pod("api"), pod("api", namespace="prod", uid="other"))
    store = ListingStore()
    await recording.store_in(store)
    return store


async def test_full_name_is_found_without_listing() -> None:
    store = await a_journal()
    assert await find_pod(store, PodName.parse("prod/api")) == "prod/api"
    assert store.listed == 0


async def test_name_without_namespace_searches_all_namespaces() -> None:
    store = await a_journal()
    assert await find_pod(store, PodName.parse("web")) == "default/web"
    assert store.listed == 1
    with pytest.raises(AuditError, match="several pods have that name: default/api, prod/api"):
        await find_pod(store, PodName.parse("api"))


async def test_unknown_pod_suggests_the_nearest_name() -> None:
    store = await a_journal()
    with pytest.raises(AuditError) as caught:
        await find_pod(store, PodName.parse("prod/apy"))
    assert str(caught.value) == "pod prod/apy is not in the journal; did you mean prod/api?"
    assert store.listed == 1
