"""Compares the state with lists of the API server, and has resources that differ listed again.

A list and a watch are never at the same version, so one look proves nothing. A difference counts
only after these steps, in which *version* is that of an object as it was read:

1. The object is read, and the state differs from it.
2. The watch passes the version, and the engine has folded what the watch delivered. The state
   still differs.
3. The object is read once more and has the same version. So it had this form at the time of
   step 2, when the watch had passed it, and the watch delivered something else.

An object that is missing needs no third step: its uid never returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from asched.comparer.comparer import ComparisonCounts
from asched.comparer.differences import GONE, differing_field, known_keys, known_object
from asched.comparer.listing import ComparedCollection, ReadChangedError, ReadObject
from asched.kube.client import ApiClient
from asched.kube.decoding import MalformedResponseError
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.reflector import Reflector
from asched.kube.timing import Clock
from asched.model.meta import Object
from asched.model.resources import WatchedResource
from asched.state.cluster import ClusterState

DIFFERS: Final = "state differs from the cluster"
"""The log event of a difference."""
_POLL_S: Final = 1.0
_WATCH_LIMIT_S: Final = 180.0
"""How long the watch may take to pass a version: API servers send a bookmark each minute."""
_MAX_READS: Final = 4
"""Of one object that changes all the time; the next comparison reads it again."""
_MAX_VERIFIED: Final = 20
"""Differences of a resource that are verified. One is enough for a new list of all objects."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class FoldProgress(Protocol):
    """How far an engine has folded the changes of its watches."""

    @property
    def received_changes(self) -> int:
        """Number of changes that the watches delivered."""
        ...

    @property
    def folded_changes(self) -> int:
        """Number of these changes that are folded completely, in order."""
        ...

    def holds_update(self, resource: WatchedResource, key: str) -> bool:
        """Whether the newest form of an object is held back on purpose."""
        ...


class ObjectDifference(NamedTuple):
    """An object that the state has in another form than the cluster."""

    resource: WatchedResource
    key: str
    uid: str
    field: str
    """As :func:`differing_field` returns it, or :data:`GONE`."""
    version: int


class _Suspect(NamedTuple):
    """An object that the state may lack or have in another form."""

    identity: Object
    read: ReadObject | None
    """None if a list did not have it."""
    version: int
    """Of the object as it was read, or of the list that did not have it."""


class ClusterComparer:
    """Compares all resources, one after the other."""

    def __init__(
        self,
        client: ApiClient,
        clock: Clock,
        state: ClusterState,
        progress: FoldProgress,
        reflectors: Callable[[], Sequence[Reflector]],
        slice_objects: int,
    ) -> None:
        self.counts = ComparisonCounts()
        self._client = client
        self._clock = clock
        self._state = state
        self._progress = progress
        self._reflectors = reflectors
        self._slice_objects = slice_objects
        self._found: dict[WatchedResource, frozenset[ObjectDifference]] = {}
        """The differences of the last comparison of each resource."""

    async def compare(self) -> None:
        """Compare all resources once, and request a list of each one that differs."""
        for reflector in tuple(self._reflectors()):
            if reflector.position is None:
                continue  # not served, or about to be listed
            try:
                await self._compare(reflector)
            except (ApiError, NoResponseError, MalformedResponseError, ReadChangedError) as error:
                self.counts.failures += 1
                label = reflector.resource.label
                log.debug("resource not compared", resource=label, error=str(error))
        self.counts.passes += 1

    async def _compare(self, reflector: Reflector) -> None:
        collection = ComparedCollection(self._client, self._clock, reflector, self._slice_objects)
        suspects = await self._suspects(reflector, collection)
        if suspects:
            # Nearly all of them are changes that the watch delivers a moment later.
            last = max(suspect.version for suspect in suspects)
            if not await self._passed(last, reflector, collection):
                return
            suspects = [suspect for suspect in suspects if self._still_differs(suspect)]
        found = []
        for suspect in suspects[:_MAX_VERIFIED]:
            difference = await self._verified(suspect, reflector, collection)
            if difference is not None:
                found.append(difference)
        self._report(reflector, found)

    def _still_differs(self, suspect: _Suspect) -> bool:
        state, identity = self._state, suspect.identity
        if suspect.read is not None:
            return bool(differing_field(state, suspect.read.object))
        known = known_object(state, type(identity), identity.key)
        return known is not None and known.uid == identity.uid

    async def _suspects(
        self, reflector: Reflector, collection: ComparedCollection
    ) -> list[_Suspect]:
        """Objects that differ from a list at first sight."""
        resource, state = reflector.resource, self._state
        # Objects that the state gets after this line may be newer than the list.
        known = known_keys(state, resource)
        suspects: dict[str, _Suspect] = {}
        listed: set[str] = set()
        list_version = 0
        async for part in collection.slices():
            list_version = part.list_version
            self.counts.compared += len(part.objects)
            listed |= part.unreadable
            listed.update(f"{resource.label}/{key}" for key in part.unreadable)
            for read in part.objects:
                listed.add(read.object.key)
                if differing_field(state, read.object):
                    suspects[read.object.key] = _Suspect(read.object, read, read.version)
        for begin in range(0, len(known), self._slice_objects):
            for key in known[begin : begin + self._slice_objects]:
                if key not in listed:
                    identity = known_object(state, resource.type, key)
                    if identity is not None:
                        suspects[key] = _Suspect(identity, None, list_version)
            await self._clock.sleep(0)
        return [*suspects.values()]

    async def _verified(
        self, suspect: _Suspect, reflector: Reflector, collection: ComparedCollection
    ) -> ObjectDifference | None:
        """The difference if it is certain."""
        resource, key, read = reflector.resource, suspect.identity.key, suspect.read
        for _ in range(_MAX_READS):
            field = ""
            if read is not None:
                if not await self._passed(read.version, reflector, collection):
                    return None
                field = differing_field(self._state, read.object)
                if not field or self._progress.holds_update(resource, key):
                    return None
            known = known_object(self._state, resource.type, key)
            again = await collection.one(suspect.identity)
            if again.unreadable:
                return None
            if not again.objects:
                # An object that was known before the read was deleted before it.
                if known is None or not await self._passed(
                    again.list_version, reflector, collection
                ):
                    return None
                return self._gone(resource, known, again.list_version)
            before, read = read, again.objects[0]
            if before is not None and before.version == read.version:
                return ObjectDifference(resource, key, read.object.uid, field, read.version)
        return None

    def _gone(
        self, resource: WatchedResource, deleted: Object, version: int
    ) -> ObjectDifference | None:
        known = known_object(self._state, type(deleted), deleted.key)
        if known is None or known.uid != deleted.uid:
            return None
        return ObjectDifference(resource, deleted.key, deleted.uid, GONE, version)

    async def _passed(
        self, version: int, reflector: Reflector, collection: ComparedCollection
    ) -> bool:
        """Wait until the state contains everything up to ``version``. False if it takes too
        long, as for a watch that hangs."""
        until_s = self._clock.monotonic_s() + _WATCH_LIMIT_S
        while (position := reflector.position) is None or position < version:
            if self._clock.monotonic_s() >= until_s:
                return False
            await self._clock.sleep(_POLL_S)
            collection.check_unchanged()
        delivered = self._progress.received_changes
        while self._progress.folded_changes < delivered:
            if self._clock.monotonic_s() >= until_s:
                return False
            await self._clock.sleep(_POLL_S / 10)
        collection.check_unchanged()
        return True

    def _report(self, reflector: Reflector, found: list[ObjectDifference]) -> None:
        resource = reflector.resource
        repeated = self._found.pop(resource, frozenset())
        if not found:
            return
        self._found[resource] = frozenset(found)
        self.counts.differences += len(found)
        for difference in found:
            log.error(
                DIFFERS,
                resource=resource.label,
                object=difference.key,
                uid=difference.uid,
                field=difference.field,
                resource_version=difference.version,
            )
        if repeated.issuperset(found):
            log.error("difference remains after a new list", resource=resource.label)
            return
        self.counts.repairs += 1
        reflector.relist(reflector.field_selector)
