"""The loop of a controller: a queue with the keys of changed objects."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.storage import StoreChange


class ObjectKey(NamedTuple):
    """An object of a resource."""

    resource: str
    """The plural."""
    key: str
    """``namespace/name``, or just the name."""

    @property
    def namespace(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


class Reconciler(ABC):
    """A controller as a task (:meth:`run`), or :meth:`step` after changes of the cluster."""

    resources: tuple[str, ...] = ()
    """The resources that it listens to."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._queue: dict[ObjectKey, None] = {}
        self._wake = asyncio.Event()
        self._unsubscribe: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Start managing existing and later objects."""
        for resource in self.resources:

            def on_change(change: StoreChange, resource: str = resource) -> None:
                self.on_change(resource, change)

            self._unsubscribe.append(self._cluster.listen(resource, on_change))
            for stored in self._cluster.stored(resource):
                self.enqueue(resource, stored.key)

    def detach(self) -> None:
        """Stop managing objects."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        self._queue.clear()

    async def run(self) -> None:
        """Serve until cancelled."""
        self.attach()
        try:
            while True:
                self._wake.clear()
                self.step()
                await self._wake.wait()
        finally:
            self.detach()

    def step(self) -> None:
        """Synchronize everything that changed, including what this changes."""
        while self._queue:
            key = next(iter(self._queue))
            del self._queue[key]
            self.sync(key)

    def enqueue(self, resource: str, key: str) -> None:
        self._queue[ObjectKey(resource, key)] = None
        self._wake.set()

    def on_change(self, resource: str, change: StoreChange) -> None:
        """Called within a write: it may only :meth:`enqueue`."""
        self.enqueue(resource, change.new.key)

    @abstractmethod
    def sync(self, item: ObjectKey) -> None:
        """Bring the cluster to the state that the object asks for."""
