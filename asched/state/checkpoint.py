"""Checkpoints: a state as bytes, so that a fold can go on from there instead of from the start.

A restored state is the one that was kept in every respect that a later decision may depend on:
rows of the node table and who is in them in which order, places in queues, what is in flight. What
is memory only (shared answers, indexes) is built anew when it is asked for, and the books of
plugins are entered again as after a change of profiles.

A checkpoint is no history: one that this code cannot read is worth nothing and loses nothing.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from asched.framework.interface import Eviction
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.profile import PluginLoader
from asched.model.custom import CustomObject
from asched.model.meta import Object, ObjectMeta
from asched.model.node import Node
from asched.state.checkpoint_encoding import MAGIC, encode, templates_of
from asched.state.checkpoint_form import FORMAT, InquiryForm, StateForm
from asched.state.checkpoint_image import image_of_state
from asched.state.checkpoint_queue import refill
from asched.state.cluster import ClusterState, PodEntry, PodPhase
from asched.state.fold import Fold
from asched.state.inquiries import FilterAnswers, PendingEvaluation
from asched.state.permits import PermitAnswer, WaitingPod
from asched.state.pod_fold import PodFold
from asched.state.sessions import GroupWrite, RefusedBinding
from asched.state.steps import in_one_go
from asched.state.templates import Templates

SIZE_LIMIT_BYTES = 4 * 1024**3
"""Of a checkpoint unpacked; a tenth of that holds 100,000 pods."""
_FREE_ROW = "\0free row "
"""Begins the names of nodes that hold rows open while a table is built; no node has such a name."""


class CheckpointError(Exception):
    """A checkpoint cannot be used: another format, or damaged. The text says which."""


def checkpoint_of(state: ClusterState) -> bytes:
    """The state as bytes that :func:`restore` reads."""
    return encode(image_of_state(state))


def restore(blob: bytes, load: PluginLoader) -> Fold:
    """A fold over the state that was kept. ``load`` finds the plugins of its profiles.

    Raises :class:`CheckpointError` for a checkpoint of another format, or a damaged one.
    """
    form = _decoded(blob)
    fold = Fold(ClusterState(), load)
    state = fold.state
    state.now_ns, state.epoch = form.now_ns, form.epoch
    state.seed, state.lottery = form.seed, form.lottery
    state.follow(form.rules)
    state.templates = in_one_go(templates_of(form.templates, form.last_template))
    # Makes the profiles and configures the queue, while there is nothing yet to sort in.
    fold.apply(form.loaded)
    try:
        _fill(state, form)
    except (LookupError, ValueError) as error:
        raise CheckpointError(f"it contradicts itself ({error!r})") from error
    return fold


def _fill(state: ClusterState, form: StateForm) -> None:
    """All but the profiles."""
    pods = _Pods(form, state.templates)
    _fill_objects(state, form)
    _fill_nodes(state, form, pods)
    _fill_pods(state, form, pods)
    refill(state.queue, form.queue, pods.info)
    state.inquiries.update((inquiry.key, _inquiry(inquiry)) for inquiry in form.inquiries)
    state.next_start_row = form.next_start_row
    for kept in form.circuits:
        circuit = state.circuits.circuit(kept.scheduler_name, kept.plugin)
        circuit.failed_at_ns.extend(kept.failed_at_ns)
        circuit.until_ns, circuit.on_trial = kept.until_ns, kept.on_trial
        circuit.held.update(dict.fromkeys(kept.held))
    _fill_sessions(state, form, pods)
    _fill_groups(state)
    _fill_books(state)
    for answer in form.answers:
        state.permits.say(PermitAnswer(answer.key, answer.plugin, answer.message))


_decode = msgspec.msgpack.Decoder(StateForm).decode


def _decoded(blob: bytes) -> StateForm:
    header = blob[: len(MAGIC) + 20].partition(b"\n")[0]
    if not header.startswith(MAGIC):
        raise CheckpointError("it is no checkpoint of asched")
    if header != MAGIC + b"%d" % FORMAT:
        there = header.removeprefix(MAGIC).decode(errors="replace")
        raise CheckpointError(f"it has format {there}, this asched reads {FORMAT}")
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(blob[len(header) + 1 :], SIZE_LIMIT_BYTES)
        if unpacking.unconsumed_tail:
            raise CheckpointError(f"it holds more than {SIZE_LIMIT_BYTES} bytes")
        if not unpacking.eof:
            raise CheckpointError("it is damaged: it breaks off")
        return _decode(content)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CheckpointError(f"it is damaged: {error}") from None


class _Pods:
    """Pods by their numbers in a checkpoint; each is made once."""

    def __init__(self, form: StateForm, templates: Templates) -> None:
        self._whole = form.whole_pods
        self._copies = form.copied_pods
        self._templates = templates
        self._made: dict[int, PodInfo] = {}

    def info(self, number: int) -> PodInfo:
        info = self._made.get(number)
        if info is None:
            place, copied = divmod(number, 2)
            if copied:
                info = self._templates.instance(self._copies[place])
            else:
                info = PodInfo(self._whole[place])
            self._made[number] = info
        return info


def _fill_objects(state: ClusterState, form: StateForm) -> None:
    for kept in form.objects:
        of_kind: dict[str, Object] = state.objects_of.setdefault(type(kept), {})
        of_kind[kept.key] = kept
        state.objects_changed[type(kept)] += 1
        if isinstance(kept, CustomObject):
            # A plugin may have asked for them while it was made, and there were none yet.
            state.custom.seen(kept)


def _fill_nodes(state: ClusterState, form: StateForm, pods: _Pods) -> None:
    """Every node in the row where it was, with its pods in their order."""
    table, nodes = state.nodes, state.objects(Node)
    free = []
    # Sessions tell a resource that is no more from one that never was, and name them in this order.
    for columns, names in zip((table._allocatable, table._requested), form.resources, strict=True):
        for name in names:
            table._column(columns, name)
    for number, row in enumerate(form.rows):
        if row.name:
            table.set_node(nodes[row.name])
        else:
            free.append(f"{_FREE_ROW}{number}")
            table.set_node(Node(metadata=ObjectMeta(name=free[-1])))
    for name in free:
        table.remove_node(name)
    for row in form.rows:
        for number in row.pods:
            table.add_pod(row.name, pods.info(number))
    for stray in form.strays:
        for number in stray.pods:
            table.add_pod(stray.node, pods.info(number))


def _fill_pods(state: ClusterState, form: StateForm, pods: _Pods) -> None:
    for kept in form.entries:
        info = pods.info(kept.pod)
        entry = state.pods[info.key] = PodEntry(info, kept.template)
        entry.phase, entry.node, entry.rejection = PodPhase(kept.phase), kept.node, kept.rejection
        entry.assignment, entry.reserved = kept.assignment, kept.reserved
    for place in form.nominated:
        for number in place.pods:
            state.nominator.nominate(pods.info(number), place.node)
    for held in form.waiting:
        state.permits.hold(
            WaitingPod(pods.info(held.pod), held.node, held.since_ns, {**held.pending_until_ns})
        )
    for eviction in form.evictions:
        state.evictions.begin(
            Eviction(eviction.victim, eviction.preemptor, eviction.node, eviction.reason)
        )
    for uid, key in form.room_made:
        state.evictions.has_use(key, uid)
    for uid in form.useless:
        state.evictions.forget(uid)


def _inquiry(form: InquiryForm) -> PendingEvaluation:
    inquiry = PendingEvaluation(form.uid, form.attempt)
    inquiry.verb, inquiry.candidates = form.verb, form.candidates
    inquiry.pending = set(form.pending)
    inquiry.rows = np.array(form.rows, np.intp)
    inquiry.compared = np.array(form.compared, np.intp)
    for index, given in form.filters.items():
        answers = inquiry.filters[index] = FilterAnswers()
        answers.rows = np.array(given.rows, np.intp)
        answers.codes = np.array(given.codes, np.int16)
        answers.statuses = [*given.statuses]
    inquiry.scores = {index: np.array(s, np.int64) for index, s in form.scores.items()}
    inquiry.reviews = {**form.reviews}
    inquiry.failures = {(verb, index): text for verb, index, text in form.failures}
    return inquiry


def _fill_groups(state: ClusterState) -> None:
    pods = PodFold(state)
    for entry in state.pods.values():
        pods.regroup(entry)


def _fill_sessions(state: ClusterState, form: StateForm, pods: _Pods) -> None:
    sessions = state.sessions
    sessions.load(kept.spec for kept in form.sessions)
    for profile, kept in zip(sessions, form.sessions, strict=True):
        profile.restore(kept.number, kept.held_ns, kept.changes)
        profile.pending.update(dict.fromkeys(kept.pending))
        profile.refused = {key: RefusedBinding(*form) for key, form in kept.refused.items()}
    for number in form.finished:
        info = pods.info(number)
        sessions.finished[info.key] = info
    for write in form.group_writes:
        decision = write.decision
        sessions.writes[decision.kind, decision.group] = GroupWrite(decision, write.under_way)


def _fill_books(state: ClusterState) -> None:
    """Tell Reserve plugins what they were told of the pods that are still there."""
    pods = PodFold(state)
    for entry in state.pods.values():
        profile = pods.profile(entry)
        if entry.assignment is not None:
            state.books.enter(profile, entry.info, entry.assignment)
        elif entry.reserved is not None:
            state.books.enter(profile, entry.info, entry.reserved)
            state.books.close(profile, entry.info, entry.reserved)
