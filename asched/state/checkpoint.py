"""Checkpoints: a state as bytes, so that a fold can continue from there and not from the start.

A restored state equals the original in everything that a later decision may depend on. Caches and
indexes are computed again when they are used, and Reserve plugins are called again as after a
change of profiles. A checkpoint that this code cannot read is ignored, and nothing is lost.

Pods are stored once. Other parts refer to a pod by number: ``2k`` is entry ``k`` of
:attr:`CheckpointContent.full_pods`, ``2k + 1`` is entry ``k`` of
:attr:`CheckpointContent.copied_pods`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
import numpy as np

from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.captures import Capture
from asched.state.charged_forms import ChargedForm
from asched.state.circuits import CircuitSnapshot
from asched.state.claim_releases import PendingClaimRelease
from asched.state.cluster import AttemptGuards, ClusterState, EngineNumbers, PodEntry
from asched.state.cluster_events import QueuedClusterEvent
from asched.state.fold import Fold
from asched.state.node_table import NodeTable
from asched.state.node_table_forms import NodeTableSnapshot, PodsOnRows
from asched.state.objects import ObjectStore
from asched.state.pending_evaluations import PendingEvaluation
from asched.state.pod_fold import PodFold
from asched.state.preemption import EvictionsSnapshot, NominatedSnapshot
from asched.state.queue_contents import QueueSnapshot, event_from_form, event_to_form
from asched.state.records import PodObserved, ProfilesLoaded
from asched.state.seen_versions import VersionsSection
from asched.state.sessions import SessionsSnapshot
from asched.state.stored_form import STEP, Steps, StoredForm, encode_in_steps, run
from asched.state.templates import Templates, TemplatesSnapshot, record_copy, restore_copy
from asched.state.waiting_pods import WaitingPodsSnapshot

FORMAT: Final = 1
"""Incremented whenever a stored form changes, or the state that the same records fold to."""

SIZE_LIMIT_BYTES: Final = 4 * 1024**3
"""Of an uncompressed checkpoint; 100,000 pods need a tenth of it."""

_MAGIC: Final = b"asched-checkpoint "
_COMPRESSION_LEVEL: Final = 1
_VERSIONS_STEP: Final = 10 * STEP


class CheckpointError(Exception):
    """A checkpoint has another format or is damaged; the message says which."""


ObjectsT = TypeVar("ObjectsT")


class StateSnapshot(StoredForm, Generic[ObjectsT]):
    """The state without its templates."""

    now_ns: int
    engine: EngineNumbers
    profiles: ProfilesLoaded
    objects: ObjectsT
    """All but pods: the objects, or how they are stored."""
    api_versions: tuple[tuple[str, str], ...]
    nodes: NodeTableSnapshot
    pods: tuple[PodEntry, ...]
    unfinished_bindings: tuple[PodEntry, ...]
    unsettled: tuple[tuple[str, int], ...]
    deleted_unsettled: tuple[PodEntry, ...]
    nominator: tuple[NominatedSnapshot, ...]
    waiting_pods: WaitingPodsSnapshot
    evictions: EvictionsSnapshot
    claim_releases: tuple[PendingClaimRelease, ...]
    pending_evaluations: tuple[tuple[str, PendingEvaluation], ...]
    queue: QueueSnapshot
    sessions: SessionsSnapshot
    circuits: tuple[CircuitSnapshot, ...]
    attempt_budgets: tuple[tuple[str, int], ...]
    group_turns: tuple[tuple[str, int], ...]
    victim_searches: tuple[tuple[str, int], ...]
    claim_searches: tuple[ChargedForm, ...]
    term_forms: tuple[ChargedForm, ...]
    quarantined: tuple[tuple[str, str], ...]


class CheckpointContent(StoredForm):
    """The content of a checkpoint. Pods come first: the rest refers to them."""

    templates: TemplatesSnapshot
    full_pods: tuple[Pod, ...]
    copied_pods: tuple[PodObserved, ...]
    state: msgspec.Raw


def encode(state: ClusterState, versions: VersionsSection | None = None) -> Steps[list[bytes]]:
    """The content of a checkpoint, for :func:`compress`. Adds its objects to ``versions``.

    Captures the state at once, in some nanoseconds a pod. The steps encode the capture.
    """
    profiles = tuple(profile.spec for profile in state.profiles.values())
    objects = state.object_store.snapshot()
    without_pods = partial(
        StateSnapshot,
        now_ns=state.now_ns,
        engine=msgspec.structs.replace(state.engine),
        profiles=ProfilesLoaded(
            profiles, state.queue.settings, state.extenders, state.plugin_context.feature_gates
        ),
        objects=objects,
        api_versions=tuple(state.object_store.api_versions.items()),
        unfinished_bindings=_copies(state.reserve_calls.unfinished.values()),
        unsettled=tuple(state.reserve_calls.unsettled.items()),
        deleted_unsettled=_copies(state.reserve_calls.deleted_unsettled.values()),
        nominator=state.nominator.snapshot(),
        waiting_pods=state.waiting_pods.snapshot(),
        evictions=state.evictions.snapshot(),
        claim_releases=state.claim_releases.snapshot(),
        pending_evaluations=state.pending_evaluations.snapshot(),
        sessions=state.sessions.snapshot(),
        circuits=state.guards.circuits.snapshot(),
        attempt_budgets=state.guards.budgets.snapshot(),
        group_turns=state.guards.budgets.group_turns(),
        victim_searches=state.guards.budgets.victim_searches(),
        claim_searches=state.guards.searches.snapshot(),
        term_forms=state.guards.terms.snapshot(),
        quarantined=tuple(state.guards.quarantined.items()),
    )
    pods_now: Sequence[PodEntry] = state.pods_by_uid.captured()
    if len(pods_now) != len(state.pods):
        # The state is damaged. The comparer finds where, so it has to be what decisions read.
        pods_now = [*state.pods.values()]
    entries = state.pod_captures.begin(pods_now)
    nodes, queue = state.nodes.snapshot(), state.queue.snapshot()
    pods = _PodNumbers(state.templates.snapshot())
    steps = _encode(pods, entries, nodes, queue, without_pods)
    return steps if versions is None else _with_versions(steps, versions, entries, objects)


def _with_versions(
    steps: Steps[list[bytes]],
    versions: VersionsSection,
    entries: Capture[PodEntry],
    objects: Sequence[AnyObject],
) -> Steps[list[bytes]]:
    for begin in range(0, len(entries), _VERSIONS_STEP):
        part = entries.part(begin, begin + _VERSIONS_STEP)
        versions.add([entry.info for entry in part])
        yield
    for begin in range(0, len(objects), _VERSIONS_STEP):
        versions.add_objects(objects[begin : begin + _VERSIONS_STEP])
        yield
    del entries, objects
    return (yield from steps)


def _copies(entries: Iterable[PodEntry]) -> tuple[PodEntry, ...]:
    return tuple(map(msgspec.structs.replace, entries))


def _encode(
    pods: _PodNumbers,
    entries: Capture[PodEntry],
    nodes: Steps[NodeTableSnapshot],
    queue: Steps[QueueSnapshot],
    without_pods: Callable[..., StateSnapshot[tuple[AnyObject, ...]]],
) -> Steps[list[bytes]]:
    for begin in range(0, len(entries), STEP):
        for entry in entries.part(begin, begin + STEP):
            pods.add(entry.info.pod, entry.template)
        yield
    state = without_pods(pods=entries, nodes=(yield from nodes), queue=(yield from queue))
    encoder = msgspec.msgpack.Encoder(enc_hook=pods.encode_value)
    encoded_state = yield from encode_in_steps(state, encoder.encode)
    del state, entries, without_pods
    yield
    # The encoded state is not copied into the content: that would be one long step. Neither are
    # the lists of pods.
    full, copies = cast(Any, pods.full), cast(Any, pods.copies)
    form = CheckpointContent(pods.templates, full, copies, msgspec.Raw())
    content = yield from encode_in_steps(form, encoder.encode)
    del form, full, copies
    yield from pods.clear()
    return content + encoded_state


def compress(content: Iterable[bytes], versions: Iterable[bytes] = ()) -> bytes:
    """The checkpoint. Releases the interpreter lock while it compresses. ``versions``: the content
    of a :class:`VersionsSection`, which follows the state as a stream of its own."""
    return b"".join((_MAGIC, b"%d\n" % FORMAT, *_packed(content), *_packed(versions)))


def _packed(content: Iterable[bytes]) -> list[bytes]:
    """Nothing for no content."""
    compressor = zlib.compressobj(_COMPRESSION_LEVEL)
    # Joining the parts would hold the interpreter lock.
    packed = [*map(compressor.compress, content)]
    return [*packed, compressor.flush()] if packed else []


def checkpoint_of(state: ClusterState) -> bytes:
    """The state as bytes for :func:`restore`. Equal states give equal bytes."""
    return compress(run(encode(state)))


def checkpoint_with_versions(state: ClusterState) -> bytes:
    """As :func:`checkpoint_of`, with the versions of pods, for the next start of a daemon."""
    versions = VersionsSection(state.seen)
    content = run(encode(state, versions))
    return compress(content, versions.content())


def same_content(blob: bytes, other: bytes) -> bool | None:
    """Whether two checkpoints contain the same state, however it is compressed.

    None if they have different formats: equal states then differ.
    """
    if blob == other:
        return True
    header, _, packed = blob.partition(b"\n")
    other_header, _, other_packed = other.partition(b"\n")
    if header != other_header:
        return None
    try:
        return zlib.decompress(packed) == zlib.decompress(other_packed)
    except zlib.error:
        return False


class KnownObjects:
    """Objects and nodes of a checkpoint, for states that are restored later.

    States of one cluster have most objects in common. Objects are immutable: what is equal is
    decoded once, and states share it.
    """

    def __init__(self, blob: bytes) -> None:
        """Raises :class:`CheckpointError`."""
        with _damage():
            content = _parts(CheckpointContent, _content(blob).state)
            # Others find the shapes of these pods as long as they are in use.
            self._templates = Templates()
            self._templates.restore(
                msgspec.msgpack.decode(content["templates"], type=TemplatesSnapshot)
            )
            state = _parts(StateSnapshot, content["state"])
            self._form = bytes(state["objects"])
            forms = msgspec.msgpack.decode(self._form, type=list[msgspec.Raw])
            self._by_form = {bytes(form): _decode_object(form) for form in forms}
            store = ObjectStore()
            store.restore(self._by_form.values())
            self._store: ObjectStore | None = store
            self._nodes = store.of_kind(Node)
            self._table: NodeTable | None = self._table_of(
                _parts(NodeTableSnapshot, state["nodes"])
            )

    def _table_of(self, stored: dict[str, msgspec.Raw]) -> NodeTable:
        """The table without its pods."""
        names, allocatable, unoffered = (
            msgspec.msgpack.decode(stored[field], type=tuple[str, ...])
            for field in ("names", "allocatable", "unoffered")
        )
        nodes = {item.key: item for item in self._by_form.values() if isinstance(item, Node)}
        table = NodeTable()
        snapshot = NodeTableSnapshot(names, (), PodsOnRows(), (), allocatable, unoffered)
        table.restore_rows(snapshot, [nodes[name] if name else None for name in names])
        return table

    def restore_into(self, store: ObjectStore, objects: msgspec.Raw) -> None:
        """Fill an empty store with the objects of another checkpoint."""
        own, self._store = self._store, None
        if own is not None and bytes(objects) == self._form:
            # No object is read: a process that was forked would copy the memory of all of them.
            store.take(own)
            return
        known = self._by_form
        forms = msgspec.msgpack.decode(objects, type=list[msgspec.Raw])
        store.restore(known.get(bytes(form)) or _decode_object(form) for form in forms)

    def take_table(
        self, snapshot: NodeTableSnapshot, nodes: Mapping[str, Node]
    ) -> NodeTable | None:
        """The table, if another checkpoint has the same rows. Only one state can have it."""
        table = self._table
        if table is None or not table.has_rows(snapshot):
            return None
        if nodes is not self._nodes and not table.has_objects(nodes):
            return None
        self._table = None
        return table


def _decode_object(form: msgspec.Raw) -> AnyObject:
    found: AnyObject = msgspec.msgpack.decode(form, type=AnyObject)
    return found


def _parts(kind: type[StoredForm], stored: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The encoded fields of a stored form."""
    parts = msgspec.msgpack.decode(stored, type=list[msgspec.Raw])
    return dict(zip(kind.__struct_fields__, parts, strict=True))


def restore(blob: bytes, load: PluginLoader, known: KnownObjects | None = None) -> Fold:
    """A fold of the stored state. ``load`` returns the plugins of its profiles. With ``known``
    objects, which do not change, less is decoded, and a pod only when it is first read.

    Raises :class:`CheckpointError` for a checkpoint of another format, or a damaged one.
    """
    fold = Fold(ClusterState(), load)
    with _damage():
        content = _content(blob)
        parts = _parts(CheckpointContent, content.state)
        templates = fold.state.templates
        templates.restore(msgspec.msgpack.decode(parts["templates"], type=TemplatesSnapshot))
        full = msgspec.msgpack.decode(parts["full_pods"], type=tuple[Pod, ...])
        copied = templates.stored_pods(parts["copied_pods"], lazily=known is not None)
        decode_value = _decoder_of(_pods_by_number(full, copied))
        kind = StateSnapshot[msgspec.Raw]
        state = msgspec.msgpack.decode(parts["state"], type=kind, dec_hook=decode_value)
        _restore(fold, state, known)
        if known is None:
            fold.state.seen.restore(content.versions, [entry.info for entry in state.pods])
    return fold


@contextmanager
def _damage() -> Iterator[None]:
    """Errors of a checkpoint that is damaged."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"it is damaged: {error}") from None
    except (LookupError, ValueError, zlib.error) as error:
        raise CheckpointError(f"it contradicts itself ({error!r})") from error


class _Content(NamedTuple):
    state: bytes
    versions: bytes
    """Compressed; empty if they are unknown."""


def _content(blob: bytes) -> _Content:
    header = blob[: len(_MAGIC) + 20].partition(b"\n")[0]
    if not header.startswith(_MAGIC):
        raise CheckpointError("it is not a checkpoint of asched")
    if header != _MAGIC + b"%d" % FORMAT:
        found = header.removeprefix(_MAGIC).decode(errors="replace")
        raise CheckpointError(f"it has format {found}, this asched reads {FORMAT}")
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(blob[len(header) + 1 :], SIZE_LIMIT_BYTES)
    except zlib.error as error:
        raise CheckpointError(f"it is damaged: {error}") from None
    if decompressor.unconsumed_tail:
        raise CheckpointError(f"it has more than {SIZE_LIMIT_BYTES} bytes")
    if not decompressor.eof:
        raise CheckpointError("it is damaged: it is truncated")
    return _Content(content, decompressor.unused_data)


def _restore(fold: Fold, snapshot: StateSnapshot[msgspec.Raw], known: KnownObjects | None) -> None:
    state = fold.state
    state.now_ns, state.engine = snapshot.now_ns, snapshot.engine
    # Builds the profiles and configures the queue while there are no pods to sort.
    fold.apply(snapshot.profiles)
    if known is None:
        objects = msgspec.msgpack.decode(snapshot.objects, type=tuple[AnyObject, ...])
        state.object_store.restore(objects)
    else:
        known.restore_into(state.object_store, snapshot.objects)
    state.object_store.api_versions.update(snapshot.api_versions)
    nodes = state.objects(Node)
    table = None if known is None else known.take_table(snapshot.nodes, nodes)
    if table is not None:
        state.nodes.take_rows(table)
    state.nodes.restore(snapshot.nodes, nodes)
    infos = [entry.info for entry in snapshot.pods]
    keys = [info.key for info in infos]
    state.pods.update(zip(keys, snapshot.pods, strict=True))
    state.pods_by_uid.fill(snapshot.pods)
    state.nominator.restore(snapshot.nominator)
    state.waiting_pods.restore(snapshot.waiting_pods)
    state.evictions.restore(snapshot.evictions)
    state.claim_releases.restore(snapshot.claim_releases)
    state.queue.restore(snapshot.queue)
    state.pending_evaluations.update(snapshot.pending_evaluations)
    _restore_guards(state.guards, snapshot)
    state.sessions.restore(snapshot.sessions)
    pods = PodFold(state)
    pods.update_groups()
    unfinished = {entry.info.uid: entry for entry in snapshot.unfinished_bindings}
    state.reserve_calls.unfinished.update(unfinished)
    state.reserve_calls.unsettled.update(snapshot.unsettled)
    gone = {entry.info.uid: entry for entry in snapshot.deleted_unsettled}
    state.reserve_calls.deleted_unsettled.update(gone)
    for entry in snapshot.pods:
        if entry.assignment is not None or entry.reserved is not None:
            pods.reservations.repeat(entry)
    pods.reservations.repeat_deleted()
    # Reserve plugins may have added answers.
    state.waiting_pods.reset_answers(snapshot.waiting_pods.answers)


def _restore_guards(guards: AttemptGuards, snapshot: StateSnapshot[msgspec.Raw]) -> None:
    guards.circuits.restore(snapshot.circuits)
    guards.budgets.restore(
        snapshot.attempt_budgets,
        snapshot.group_turns,
        snapshot.victim_searches,
        snapshot.engine.step_ns,
    )
    guards.searches.restore(snapshot.claim_searches)
    guards.terms.restore(snapshot.term_forms)
    guards.quarantined.update(snapshot.quarantined)


class _PodNumbers:
    """Numbers pods and collects their stored forms."""

    def __init__(self, templates: TemplatesSnapshot) -> None:
        self.templates = templates
        self.full: list[Pod] = []
        self.copies: list[PodObserved] = []
        self._common = {kept.number: kept.pod for kept in templates.templates}
        self._numbers: dict[int, int] = {}

    def add(self, pod: Pod, template: int) -> int:
        record = self._copy_of(pod, template) if template else None
        if record is None:
            number = 2 * len(self.full)
            self.full.append(pod)
        else:
            number = 2 * len(self.copies) + 1
            self.copies.append(record)
        self._numbers[id(pod)] = number
        return number

    def clear(self) -> Steps[None]:
        """Free everything. At once it would take longer than all other steps."""
        for kept in (self.full, self.copies):
            while kept:
                del kept[-STEP:]
                yield
        while self._numbers:
            for _ in range(min(STEP, len(self._numbers))):
                self._numbers.popitem()
            yield

    def number_of(self, pod: Pod) -> int:
        number = self._numbers.get(id(pod))
        return self.add(pod, 0) if number is None else number

    def encode_value(self, value: object) -> object:
        """For the types that are no stored forms."""
        if isinstance(value, PodInfo):
            return self.number_of(value.pod)
        if isinstance(value, QueuedClusterEvent):
            return event_to_form(value, self.number_of)
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.tolist()
        raise NotImplementedError(f"{type(value).__name__} cannot be stored")

    def _copy_of(self, pod: Pod, template: int) -> PodObserved | None:
        """The pod as a copy of its template; None if a record cannot hold all differences."""
        common = self._common[template]
        record = record_copy(template, common, pod)
        return record if restore_copy(record, common) == pod else None


def _pods_by_number(full: Iterable[Pod], copied: Sequence[PodInfo]) -> list[PodInfo | None]:
    whole = [*map(PodInfo, full)]
    pods: list[PodInfo | None] = [None] * (2 * max(len(whole), len(copied)))
    pods[: 2 * len(whole) : 2] = whole
    pods[1 : 2 * len(copied) : 2] = copied
    return pods


def _decoder_of(pods: list[PodInfo | None]) -> Callable[[type, Any], object]:
    """Decodes the types that are no stored forms."""

    def pod_of(number: int) -> PodInfo:
        found = pods[number]
        if found is None:
            raise LookupError(f"no pod {number}")
        return found

    def decode_value(kind: type, value: Any) -> object:
        # Called for each pod of the state.
        if kind is PodInfo:
            return pods[value]
        if kind is PodsOnRows:
            of_rows = [*map(pods.__getitem__, value)]
            if None in of_rows:
                raise LookupError("a node has a pod that is not stored")
            return PodsOnRows(cast(list[PodInfo], of_rows))
        if kind is QueuedClusterEvent:
            return event_from_form(value, pod_of)
        dtype, items = value
        return np.array(items, dtype)

    return decode_value
