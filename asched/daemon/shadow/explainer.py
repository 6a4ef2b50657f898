"""Explains why another scheduler decided differently: hypotheses about what it knew.

A scheduler decides on its own view of the cluster. The view lacks changes that its watches have not
delivered yet, and contains its own decisions that no one else has seen. A second state therefore
follows the first one with a delay. As it passes the moments around a disagreement, the pod is
decided again with what the other scheduler may have known.

The first hypothesis that makes both agree is the explanation, in the order of
:meth:`Explainer._cause`; ``docs/how-to/shadow.md`` lists them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple

import msgspec

from asched.cycle.attempt import feasible_nodes_to_find
from asched.cycle.inspect import inspect
from asched.cycle.shadow import ShadowDecider
from asched.daemon.shadow.steps import (
    SCHEDULER_STEPS,
    ShadowHypothesis,
    Step,
    StepKind,
    Subject,
    is_reversible,
)
from asched.framework.pod_info import PodInfo
from asched.model.node import ContainerImage, Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.plugins.image_locality import normalized_image_name
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained

_MAX_COMBINATIONS = 64


class Window(msgspec.Struct, frozen=True):
    """How far explanations look, in time and steps."""

    back_s: float = 2.0
    ahead_s: float = 1.0
    back_steps: int = 2_000
    ahead_steps: int = 2_000
    tries_back: int = 64
    """Limit of moments to try before a disagreement, nearest first."""
    tries_ahead: int = 12
    """Limit of later steps to apply early."""

    @property
    def delay_s(self) -> float:
        return self.back_s + self.ahead_s

    @property
    def delay_steps(self) -> int:
        return self.back_steps + self.ahead_steps


class _Disagreement:
    """A disagreement without an explanation yet."""

    def __init__(
        self, step: Step, record: ShadowCompared, pod: Pod, moments: Sequence[int]
    ) -> None:
        self.step = step
        self.record = record
        self.subject = Subject(Pod, record.key)
        self.pod = pod
        self.moments = frozenset(moments)
        """Positions of steps: the states before them are tried."""
        self.unseen: Step | None = None
        """The latest step without which both agree."""
        self.unseen_and_assumed: tuple[Step, Step] | None = None
        """As ``unseen``, together with a later step that was known early."""


class Explainer:
    """Follows a state with a delay, and explains disagreements on the way."""

    def __init__(self, fold: Fold, window: Window | None = None) -> None:
        """``fold`` holds the records before the first step."""
        self._fold = fold
        self._state = fold.state
        self._decider = ShadowDecider(fold.state)
        self._window = window or Window()
        self._steps: deque[Step] = deque()
        """Steps that the delayed state has not reached yet."""
        self._open: deque[_Disagreement] = deque()

    def due_ns(self) -> int | None:
        """When the first open disagreement can be explained if nothing else happens."""
        if not self._open:
            return None
        return self._open[0].step.at_ns + round(self._window.delay_s * NS_PER_S)

    def push(self, step: Step) -> None:
        """Add the next step."""
        self._steps.append(step)

    def add(self, step: Step, record: ShadowCompared, pod: Pod) -> None:
        """Explain a disagreement about ``pod``; ``step`` is its record's and was pushed last."""
        self._open.append(_Disagreement(step, record, pod, self._moments(step, record)))

    def _moments(self, compared: Step, record: ShadowCompared) -> list[int]:
        earliest_ns = compared.at_ns - round(self._window.back_s * NS_PER_S)
        found: list[int] = []
        for step in islice(reversed(self._steps), 1, self._window.back_steps):
            if step.at_ns < earliest_ns or len(found) == self._window.tries_back:
                break
            if step.subject == Subject(Pod, record.key):
                if step.before is None:
                    break  # the pod did not exist before
                continue
            if step.kind is not StepKind.NOTHING:
                found.append(step.position)
        return found

    def advance(self, now_ns: int) -> Iterator[ShadowExplained]:
        """Advance as far as the delay allows. Yields the explanations found on the way."""
        before_ns = now_ns - round(self._window.delay_s * NS_PER_S)
        while self._steps and (
            self._steps[0].at_ns <= before_ns or len(self._steps) > self._window.delay_steps
        ):
            yield from self._advance_one()

    def drain(self) -> Iterator[ShadowExplained]:
        """Advance to the end, because no step will follow."""
        while self._steps:
            yield from self._advance_one()

    def _advance_one(self) -> Iterator[ShadowExplained]:
        step = self._steps[0]
        for open_one in self._open:
            if step.position in open_one.moments:
                self._try_moment(open_one, step)
        if self._open and self._open[0].step.position == step.position:
            about = self._open.popleft()
            cause, detail = self._cause(about)
            record = about.record
            yield ShadowExplained(record.key, record.uid, record.number, cause, detail)
        self._steps.popleft()
        self._fold.apply(step.record)

    def _agrees(self, about: _Disagreement, early: Sequence[Step]) -> bool:
        """Whether both agree on the delayed state with these steps applied early."""
        return self._steps_to_agree(about, early, len(early)) is not None

    def _steps_to_agree(
        self, about: _Disagreement, early: Sequence[Step], least: int
    ) -> int | None:
        """How many of the ``early`` steps, at least ``least``, make both agree; None if none do."""
        hypothesis = ShadowHypothesis(self._fold)
        try:
            if about.record.key not in self._state.pods:
                hypothesis.set(about.subject, about.pod)
            for applied in range(len(early) + 1):
                if applied:
                    hypothesis.apply(early[applied - 1])
                if applied >= least and self._agrees_now(about):
                    return applied
        finally:
            hypothesis.revert()
        return None

    def _agrees_now(self, about: _Disagreement) -> bool:
        entry = self._state.pods[about.record.key]
        return not entry.node and self._decider.decide(entry.info).agrees_with(about.record)

    def _try_moment(self, about: _Disagreement, step: Step) -> None:
        """Try the state before ``step``, with the other scheduler's own steps since then."""
        own = [
            s
            for s in self._between(step.position, about.step.position)
            if s.kind in SCHEDULER_STEPS and s.subject != about.subject
        ]
        if self._agrees(about, own):
            about.unseen = step
            return
        ahead = self._ahead(about, SCHEDULER_STEPS)[:2]
        if ahead and about.unseen_and_assumed is None:
            applied = self._steps_to_agree(about, [*own, *ahead], len(own) + 1)
            if applied is not None:
                about.unseen_and_assumed = step, ahead[applied - len(own) - 1]

    def _between(self, first: int, end: int) -> list[Step]:
        offset = self._steps[0].position
        return [*islice(self._steps, first - offset, end - offset)]

    def _ahead(self, about: _Disagreement, kinds: frozenset[StepKind]) -> list[Step]:
        """The first steps of these kinds after the disagreement that may have been known before.

        The other scheduler cannot have assumed a pod that did not exist then, or that it rejected
        in the meantime.
        """
        latest_ns = about.step.at_ns + round(self._window.ahead_s * NS_PER_S)
        begin = about.step.position - self._steps[0].position + 1
        found: list[Step] = []
        rejected = {about.record.key}
        for step in islice(self._steps, begin, begin + self._window.ahead_steps):
            if step.at_ns > latest_ns or len(found) == self._window.tries_ahead:
                break
            if isinstance(step.record, ShadowCompared) and step.record.message:
                rejected.add(step.record.key)
            subject = step.subject
            if step.kind not in kinds or subject is None or not is_reversible(step):
                continue
            if subject.kind is Pod and subject.key in rejected:
                continue
            if step.kind not in SCHEDULER_STEPS or subject.key in self._state.pods:
                found.append(step)
        return found

    def _known_early(self, about: _Disagreement, ahead: list[Step]) -> Step | None:
        """The step of ``ahead`` that makes both agree if it, or all up to it, are applied early."""
        applied = self._steps_to_agree(about, ahead, 1)
        if applied is not None:
            return ahead[applied - 1]
        return next((step for step in ahead if self._agrees(about, [step])), None)

    def _cause(self, about: _Disagreement) -> tuple[DisagreementCause, str]:
        """Cause and detail. The delayed state is at the disagreement; the moments before it were
        tried already."""
        # Of the first two hypotheses, the one nearer in time counts.
        early = self._known_early(about, self._ahead(about, SCHEDULER_STEPS))
        unseen = about.unseen
        if early is not None and (unseen is None or _is_nearer(early, unseen, about)):
            nominated = early.kind is StepKind.NOMINATION
            cause = DisagreementCause.NOMINATED_POD if nominated else DisagreementCause.ASSUMED_POD
            return cause, _early_text(early, about)
        if unseen is not None:
            return DisagreementCause.UNSEEN_CHANGE, _unseen_text(unseen, about)
        size = self._image_size(about)
        if size:
            return DisagreementCause.IMAGE_SIZE, size
        if about.unseen_and_assumed is not None:
            unseen, early = about.unseen_and_assumed
            both = f"{_unseen_text(unseen, about)}; {_early_text(early, about)}"
            return DisagreementCause.UNSEEN_CHANGE, both
        changed = self._known_early(about, self._ahead(about, SCHEDULER_STEPS | {StepKind.CHANGE}))
        if changed is not None:
            return DisagreementCause.LATER_CHANGE, _early_text(changed, about)
        return self._sampled(about)

    def _image_size(self, about: _Disagreement) -> str:
        """Whether both agree with another node's report of an image's size. kube-scheduler's cache
        keeps the size of the node that reached it first; asched takes the first of its table."""
        if not about.record.node:
            return ""
        for variant in image_size_variants(self._state, about.pod):
            hypothesis = ShadowHypothesis(self._fold)
            for node in variant.nodes:
                hypothesis.set(Subject(type(node), node.key), node)
            agrees = self._agrees_now(about)
            hypothesis.revert()
            if agrees:
                return variant.text
        return ""

    def _sampled(self, about: _Disagreement) -> tuple[DisagreementCause, str]:
        record, state = about.record, self._state
        info = PodInfo(about.pod)
        found = inspect(state, state.profiles[info.pod.spec.scheduler_name], info)
        if record.node not in found.feasible:
            return DisagreementCause.UNEXPLAINED, ""
        nodes = state.nodes.cluster_size
        wanted = feasible_nodes_to_find(nodes, adaptive_percentage(nodes))
        if len(found.feasible) > wanted:
            text = f"{len(found.feasible)} nodes are feasible, kube-scheduler stops at {wanted}"
            return DisagreementCause.SAMPLED_NODES, text
        return DisagreementCause.UNEXPLAINED, ""


def adaptive_percentage(nodes: int) -> int:
    """kube-scheduler's default of ``percentageOfNodesToScore``."""
    return max(5, 50 - nodes // 125)


def _is_nearer(early: Step, unseen: Step, about: _Disagreement) -> bool:
    compared_ns = about.step.at_ns
    return early.at_ns - compared_ns <= compared_ns - unseen.at_ns


def _unseen_text(step: Step, about: _Disagreement) -> str:
    ago_ms = (about.step.at_ns - step.at_ns) / 1e6
    return f"agrees on the state before {step.text}, {ago_ms:.1f} ms before"


def _early_text(step: Step, about: _Disagreement) -> str:
    ahead_ms = (step.at_ns - about.step.at_ns) / 1e6
    return f"agrees if it is already known that {step.text}, observed {ahead_ms:.1f} ms after"


# -- image sizes that nodes report differently ----------------------------------------------------


class ImageSizeVariant(NamedTuple):
    """Nodes that all have the image sizes of certain reports."""

    nodes: tuple[Node, ...]
    text: str


def image_size_variants(state: ClusterState, pod: Pod) -> Iterator[ImageSizeVariant]:
    """Each combination of reported sizes for those images of the pod with differing reports."""
    shape = PodInfo(pod).shape
    images = (*shape.init_images, *shape.images, *shape.volume_images)
    names = sorted({normalized_image_name(image) for image in images})
    reports = {name: _reports(state, name) for name in names}
    differing = {name: found for name, found in reports.items() if len(found) > 1}
    if not differing:
        return
    for sizes in islice(product(*differing.values()), _MAX_COMBINATIONS):
        chosen = dict(zip(differing, sizes, strict=True))
        nodes = tuple(
            changed
            for node in state.objects(Node).values()
            if (changed := _with_sizes(node, chosen)) is not node
        )
        text = ", ".join(
            f"{name} has {size} bytes, as {differing[name][size]} reports"
            for name, size in chosen.items()
        )
        yield ImageSizeVariant(nodes, f"agrees if {text}")


def _reports(state: ClusterState, name: str) -> dict[int, str]:
    """Each reported size of the image, and the first node that reports it."""
    found: dict[int, str] = {}
    for node in state.objects(Node).values():
        for image in node.status.images:
            if name in image.names:
                found.setdefault(image.size_bytes, node.name)
    return found


def _with_sizes(node: Node, sizes: dict[str, int]) -> Node:
    replace = msgspec.structs.replace
    images = tuple(_with_size(image, sizes) for image in node.status.images)
    if images == node.status.images:
        return node
    return replace(node, status=replace(node.status, images=images))


def _with_size(image: ContainerImage, sizes: dict[str, int]) -> ContainerImage:
    for name in image.names:
        size = sizes.get(name)
        if size is not None and size != image.size_bytes:
            return msgspec.structs.replace(image, size_bytes=size)
    return image
