"""A picture of a state at one moment, for a checkpoint."""

from __future__ import annotations

from typing import NamedTuple, cast

from asched.framework.pod_info import PodInfo
from asched.model.resources import AnyObject
from asched.state.checkpoint_form import (
    AnswerForm,
    CircuitForm,
    EntryForm,
    EvictionForm,
    FilterAnswersForm,
    GroupWriteForm,
    InquiryForm,
    SessionForm,
    TemplateForm,
    WaitingForm,
)
from asched.state.checkpoint_queue import QueueImage, image_of
from asched.state.cluster import ClusterState, PodEntry
from asched.state.inquiries import PendingEvaluation
from asched.state.records import Lottery, ProfilesLoaded
from asched.state.rules import Rules


class Image(NamedTuple):
    """A state at one moment. It refers to what never changes, and does not change with the state,
    so it can be encoded later, and elsewhere."""

    scalars: tuple[int, int, Lottery, Rules, int, int]
    loaded: ProfilesLoaded
    templates: tuple[TemplateForm, ...]
    last_template: int
    objects: tuple[AnyObject, ...]
    resources: tuple[tuple[str, ...], tuple[str, ...]]
    row_names: list[str]
    row_ends: list[int]
    """How many of :attr:`row_pods` are in this row and those before it."""
    row_pods: list[PodInfo]
    strays: list[tuple[str, list[PodInfo]]]
    pods: list[PodInfo]
    entries: list[EntryForm]
    """Of :attr:`pods`, but for their numbers."""
    nominated: list[tuple[str, list[PodInfo]]]
    waiting: list[tuple[PodInfo, WaitingForm]]
    answers: tuple[AnswerForm, ...]
    evictions: tuple[EvictionForm, ...]
    room_made: tuple[tuple[str, str], ...]
    useless: tuple[str, ...]
    inquiries: tuple[InquiryForm, ...]
    queue: QueueImage
    sessions: tuple[SessionForm, ...]
    finished: list[PodInfo]
    group_writes: tuple[GroupWriteForm, ...]
    circuits: tuple[CircuitForm, ...]


def image_of_state(state: ClusterState) -> Image:
    """A picture of the state: a microsecond a pod. For pods and rows it makes nothing that the garbage
    collector follows, which would otherwise look for garbage amid."""
    table = state.nodes
    profiles = tuple(profile.spec for profile in state.profiles.values())
    templates = state.templates
    row_ends: list[int] = []
    row_pods: list[PodInfo] = []
    for row in range(len(table.names)):
        row_pods.extend(table.pods(row))
        row_ends.append(len(row_pods))
    return Image(
        (state.now_ns, state.seed, state.lottery, state.rules, state.epoch, state.next_start_row),
        ProfilesLoaded(profiles, state.queue._settings, state.extenders),
        tuple(
            TemplateForm(number, kept.pod, kept.users, templates._numbers.get(kept.key) == number)
            for number, kept in templates._by_number.items()
        ),
        templates._last,
        tuple(
            cast(AnyObject, kept)
            for of_kind in state.objects_of.values()
            for kept in of_kind.values()
        ),
        ((*table._allocatable,), (*table._requested,)),
        [*table.names],
        row_ends,
        row_pods,
        [(name, [*pods.values()]) for name, pods in table._strays.items()],
        [entry.info for entry in state.pods.values()],
        [_entry_form(entry) for entry in state.pods.values()],
        [(node, [*pods.values()]) for node, pods in state.nominator.by_node.items()],
        [
            (held.info, WaitingForm(-1, held.node_name, held.since_ns, {**held.pending_until_ns}))
            for held in state.waiting.values()
        ],
        tuple(AnswerForm(*answer) for answer in state.permits.answers),
        tuple(EvictionForm(*eviction) for eviction in state.evictions.values()),
        (*state.evictions.done_for.items(),),
        (*sorted(state.evictions.useless),),
        tuple(_inquiry_form(key, inquiry) for key, inquiry in state.inquiries.items()),
        image_of(state.queue),
        tuple(
            SessionForm(p.spec, p.number, p.held_ns, p.changes, (*p.pending,), {**p.refused})
            for p in state.sessions
        ),
        [*state.sessions.finished.values()],
        tuple(
            GroupWriteForm(write.decision, write.under_way)
            for write in state.sessions.writes.values()
        ),
        tuple(
            CircuitForm(
                scheduler_name, plugin, (*c.failed_at_ns,), c.until_ns, c.on_trial, (*c.held,)
            )
            for scheduler_name, plugin, c in state.circuits
        ),
    )


def _entry_form(entry: PodEntry) -> EntryForm:
    return EntryForm(
        -1, entry.template, entry.phase.value, entry.node, entry.rejection, entry.assignment,
        entry.reserved,
    )  # fmt: skip


def _inquiry_form(key: str, inquiry: PendingEvaluation) -> InquiryForm:
    return InquiryForm(
        key,
        inquiry.uid,
        inquiry.attempt,
        inquiry.verb,
        tuple(sorted(inquiry.pending)),
        tuple(inquiry.rows.tolist()),
        inquiry.candidates,
        {
            index: FilterAnswersForm(
                tuple(given.rows.tolist()), tuple(given.codes.tolist()), tuple(given.statuses)
            )
            for index, given in inquiry.filters.items()
        },
        tuple(inquiry.compared.tolist()),
        {index: tuple(scores.tolist()) for index, scores in inquiry.scores.items()},
        {**inquiry.reviews},
        tuple((verb, index, text) for (verb, index), text in inquiry.failures.items()),
    )
