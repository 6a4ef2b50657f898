"""The pods of the state by uid, and in order of arrival in chunks that captures share.

Copying the references to a million pods takes 25 ms. A capture copies those to the chunks, and a
chunk is copied before it changes for the first time after a capture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, count, islice
from typing import Final, Generic, Protocol, TypeVar, overload

from asched.framework.pod_info import PodInfo

CHUNK: Final = 1024
"""Most pods in a chunk."""
_SPARSE: Final = 4
"""A chunk with less than one pod in this many places is packed."""


class ArrivedPod(Protocol):
    """An entry of the state."""

    info: PodInfo


PodT = TypeVar("PodT", bound=ArrivedPod)
_Chunk = list[PodT | None]


class CapturedPods(Sequence[PodT]):
    """The pods as they were when this was created."""

    def __init__(self, chunks: Iterable[_Chunk[PodT]], sizes: Iterable[int]) -> None:
        """``sizes``: the number of pods in each chunk."""
        self._chunks = [*chunks]
        self._ends = [*accumulate(sizes)]
        self._read = -1
        self._pods: list[PodT] = []
        """Those of the chunk that was read last."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> PodT: ...
    @overload
    def __getitem__(self, at: slice) -> list[PodT]: ...
    def __getitem__(self, at: int | slice) -> PodT | list[PodT]:
        if isinstance(at, int):
            return self[at : at + 1][0]
        begin, end, step = at.indices(len(self))
        assert step == 1, "pods are read in order"
        found: list[PodT] = []
        while begin < end:
            number = bisect_right(self._ends, begin)
            pods = self._of_chunk(number)
            first = self._ends[number] - len(pods)
            found += pods[begin - first : end - first]
            begin = self._ends[number]
        return found

    def _of_chunk(self, number: int) -> list[PodT]:
        if number != self._read:
            self._read = number
            self._pods = [pod for pod in self._chunks[number] if pod is not None]
        return self._pods


class PodsByUid(Generic[PodT]):
    """The pods of the state by uid. Only the fold changes it."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        """By uid: ``chunk * CHUNK + position``."""
        self._chunks: dict[int, _Chunk[PodT]] = {}
        """By ascending number. A removed pod leaves None."""
        self._sizes: dict[int, int] = {}
        """The number of pods in each chunk."""
        self._last = 0
        self._captured: set[int] = set()
        """Chunks that a capture may contain."""

    def key_of(self, uid: str) -> str | None:
        """``namespace/name`` of the pod, if it is known."""
        place = self._places.get(uid)
        if place is None:
            return None
        number, position = divmod(place, CHUNK)
        pod = self._chunks[number][position]
        assert pod is not None, "a removed pod has no place"
        return pod.info.key

    def captured(self) -> CapturedPods[PodT]:
        """The pods in order of arrival, as they are now. A pod itself may change later."""
        self._captured.update(self._chunks)
        return CapturedPods(self._chunks.values(), self._sizes.values())

    def add(self, pod: PodT) -> None:
        chunk = self._changing(self._last)
        if chunk is None or len(chunk) == CHUNK:
            self._last += 1
            self._chunks[self._last] = chunk = []
            self._sizes[self._last] = 0
        self._places[pod.info.uid] = self._last * CHUNK + len(chunk)
        chunk.append(pod)
        self._sizes[self._last] += 1

    def remove(self, uid: str) -> None:
        number, position = divmod(self._places.pop(uid), CHUNK)
        chunk = self._changing(number)
        assert chunk is not None, "a place is in a chunk"
        chunk[position] = None
        self._sizes[number] -= 1
        if self._sizes[number] * _SPARSE < len(chunk):
            self._pack(number, chunk)

    def fill(self, pods: Iterable[PodT]) -> None:
        """Fill an empty collection."""
        remaining = iter(pods)
        while chunk := [*islice(remaining, CHUNK)]:
            self._last += 1
            self._chunks[self._last] = [*chunk]
            self._sizes[self._last] = len(chunk)
            first = self._last * CHUNK
            self._places.update(zip([pod.info.uid for pod in chunk], count(first), strict=False))

    def _changing(self, number: int) -> _Chunk[PodT] | None:
        """The chunk of that number, which is about to change."""
        chunk = self._chunks.get(number)
        if chunk is not None and number in self._captured:
            self._captured.remove(number)
            chunk = self._chunks[number] = chunk[:]
        return chunk

    def _pack(self, number: int, chunk: _Chunk[PodT]) -> None:
        """Drop the places of removed pods."""
        pods = [pod for pod in chunk if pod is not None]
        if not pods:
            del self._chunks[number], self._sizes[number]
            return
        chunk[:] = pods
        for place, pod in enumerate(pods, number * CHUNK):
            self._places[pod.info.uid] = place
