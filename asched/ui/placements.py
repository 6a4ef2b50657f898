"""The pods on each node after any record, without a fold.

:class:`PlacementHistory` follows the log of the node table. A placement is the time of a pod on a
node, from one record to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from asched.audit.pod_state import pod_owner
from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.state import records as r
from asched.state.cluster import ClusterState, PlacementState, PodEntry
from asched.state.stored_form import PodRecord

LASTS: Final = (1 << 63) - 1
"""The end of a placement that lasts."""


class PodForm(msgspec.Struct, frozen=True, array_like=True):
    """What many pods have in common."""

    priority: int
    owner: str
    """``Kind/name`` of the controller."""
    requests: dict[str, int]


class StoredPlacement(NamedTuple):
    """A pod on a node."""

    node: str
    begin_seq: int
    key: str
    end_seq: int
    """The record that ended it, or :data:`LASTS`."""
    bound_seq: int
    """The record that confirmed the binding; 0 while the pod is assumed."""
    form: int
    """The number of its form."""


class PlacedPod(NamedTuple):
    """A pod on a node after a record."""

    key: str
    state: str
    form: PodForm


class PlacementHistory:
    """The placements of every record from the first that was followed."""

    def __init__(self, load: Callable[[str, int], Iterable[StoredPlacement]] | None = None) -> None:
        """``load`` returns the stored placements of a node that include a record."""
        self._load = load
        self.forms: list[bytes] = []
        """Encoded, by number."""
        self._numbers: dict[bytes, int] = {}
        self._lasting: dict[str, StoredPlacement] = {}
        """By key of the pod."""
        self._unsaved: dict[tuple[str, int, str], StoredPlacement] = {}
        self._cursor = -1

    def restore(self, forms: Iterable[bytes], lasting: Iterable[StoredPlacement]) -> None:
        """Continue a stored history."""
        for form in forms:
            self._number(form)
        self._lasting.update((one.key, one) for one in lasting)

    def _number(self, form: bytes) -> int:
        number = self._numbers.get(form)
        if number is None:
            number = self._numbers[form] = len(self.forms)
            self.forms.append(form)
        return number

    # -- following --------------------------------------------------------------------------------

    def begin(self, seq: int, state: ClusterState) -> None:
        """Continue after record ``seq``; ``state`` is the one after it."""
        self._cursor = state.nodes.pods_cursor
        if not self._lasting:
            self._compare(seq, state)

    def apply(self, seq: int, record: r.AnyRecord, state: ClusterState) -> None:
        """Add a record; ``state`` is the one after it."""
        table = state.nodes
        if table.pods_cursor != self._cursor:
            changes = table.pods_changed_since(self._cursor)
            self._cursor = table.pods_cursor
            if changes is None:
                self._compare(seq, state)
            else:
                for row, pod, sign in changes:
                    if sign < 0:
                        self._end(seq, pod.key)
                    else:
                        self._place(seq, table.names[row], pod, state)
        if isinstance(record, PodRecord):
            self._confirm(seq, state.pods.get(record.key))
        elif isinstance(record, r.ObjectObserved) and isinstance(record.object, Pod):
            entry = state.pods.get(record.object.key)
            if entry is not None:
                self._update_form(seq, entry, state)
            self._confirm(seq, entry)

    def _place(self, seq: int, node: str, pod: PodInfo, state: ClusterState) -> None:
        entry = state.pods.get(pod.key)
        bound = entry is not None and entry.placement_state is PlacementState.BOUND
        form = self._number(_form(pod))
        self._put(StoredPlacement(node, seq, pod.key, LASTS, seq if bound else 0, form))

    def _put(self, placement: StoredPlacement) -> None:
        if placement.end_seq == LASTS:
            self._lasting[placement.key] = placement
        self._unsaved[placement[:3]] = placement

    def _end(self, seq: int, key: str) -> None:
        placement = self._lasting.pop(key, None)
        if placement is not None:
            self._put(placement._replace(end_seq=seq))

    def _confirm(self, seq: int, entry: PodEntry | None) -> None:
        if entry is None or entry.placement_state is not PlacementState.BOUND:
            return
        placement = self._lasting.get(entry.info.key)
        if placement is not None and not placement.bound_seq:
            self._put(placement._replace(bound_seq=seq))

    def _update_form(self, seq: int, entry: PodEntry, state: ClusterState) -> None:
        placement = self._lasting.get(entry.info.key)
        if placement is None or self.forms[placement.form] == _form(entry.info):
            return
        self._end(seq, placement.key)
        self._place(seq, placement.node, entry.info, state)

    def _compare(self, seq: int, state: ClusterState) -> None:
        """Compare with all pods of the state: the log does not reach back."""
        table = state.nodes
        placed = {
            pod.key: (name, pod)
            for row, name in enumerate(table.names)
            if name
            for pod in table.pods(row)
        }
        for key, placement in [*self._lasting.items()]:
            there = placed.get(key)
            if there is None or there[0] != placement.node:
                self._end(seq, key)
        for key, (name, pod) in placed.items():
            if key not in self._lasting:
                self._place(seq, name, pod, state)

    def unsaved(self) -> tuple[StoredPlacement, ...]:
        """What changed since :meth:`saved`."""
        return tuple(self._unsaved.values())

    def saved(self) -> None:
        self._unsaved.clear()

    # -- questions --------------------------------------------------------------------------------

    def at(self, node: str, seq: int) -> Iterator[PlacedPod]:
        """The pods on a node after a record, by key."""
        stored = () if self._load is None else self._load(node, seq)
        found = {one[:3]: one for one in stored}
        found.update((where, one) for where, one in self._unsaved.items() if where[0] == node)
        for one in sorted(found.values(), key=lambda one: one.key):
            if one.begin_seq <= seq < one.end_seq:
                bound = 0 < one.bound_seq <= seq
                state = PlacementState.BOUND if bound else PlacementState.ASSUMED
                yield PlacedPod(one.key, state.value, _FORMS.decode(self.forms[one.form]))


_FORMS: Final = msgspec.msgpack.Decoder(PodForm)


def _form(pod: PodInfo) -> bytes:
    form = PodForm(pod.priority, pod_owner(pod.pod), dict(pod.shape.requests))
    return msgspec.msgpack.encode(form)
