"""Finding the pod that a user means."""

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


async def test_a_pod_whose_namespace_is_named_is_found_without_a_list() -> None:
    store = await a_journal()
    assert await find_pod(store, PodName.parse("prod/api")) == "prod/api"
    assert store.listed == 0


async def test_a_name_alone_is_looked_for_in_all_namespaces() -> None:
    store = await a_journal()
    assert await find_pod(store, PodName.parse("web")) == "default/web"
    assert store.listed == 1
    with pytest.raises(AuditError, match="more than one pod of that name: default/api, prod/api"):
        await find_pod(store, PodName.parse("api"))


async def test_a_pod_that_is_not_there_is_told_of_with_its_nearest() -> None:
    store = await a_journal()
    with pytest.raises(AuditError) as caught:
        await find_pod(store, PodName.parse("prod/apy"))
    assert str(caught.value) == "the journal knows no pod prod/apy; did you mean prod/api?"
    assert store.listed == 1
