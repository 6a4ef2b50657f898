"""Why another scheduler disagreed: hypotheses about what it saw, tested on the recent past.

A scheduler decides on its own picture: it lacks what its watches have not brought yet, and holds
what it decided itself and nobody else has seen. So a second state, the *trail*, follows the first
one at a distance, and a disagreement is looked into as the trail passes the moments before it: at
each the pod is decided again, with what the other scheduler may have known supposed to be there.

The first hypothesis of this order that makes the two agree is the explanation, but of 1 and 2 the
one that is nearer in time:

1. pods that the other had assumed or nominated already, and whose bindings or nominations were
   seen only after this one (at the moment of the disagreement);
2. changes that it had not seen yet: the state as it was before the latest of them, and before
   that, back to when the pod itself appeared, its own bindings and nominations since then known;
3. another node's report of the size of the pod's image (kube-scheduler keeps the one that reached
   it first, and which that is cannot be told from outside);
4. 1 and 2 together;
5. changes that we were shown only later;
6. a share of the nodes only was looked at (kube-scheduler's ``percentageOfNodesToScore``): the
   other's node is feasible, and more nodes are than it would look for.

Image sizes that nodes report differently.

kube-scheduler's cache keeps one size for each image: that of the node which reached it first. In
its process this is a matter of chance; asched takes the first node of its table.
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
    OWN_DOING,
    ShadowHypothesis,
    Step,
    StepKind,
    Subject,
    may_be_supposed,
)
from asched.framework.pod_info import PodInfo
from asched.model.node import ContainerImage, Node
from asched.model.pod import Pod
from asched.model.quantity import NS_PER_S
from asched.plugins.image_locality import normalized_image_name
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import DisagreementCause, ShadowCompared, ShadowExplained

_MOST_COMBINATIONS = 64


class OtherSizes(NamedTuple):
    """Nodes as if all agreed with the report of certain ones."""

    nodes: tuple[Node, ...]
    text: str


def other_sizes(state: ClusterState, pod: Pod) -> Iterator[OtherSizes]:
    """Each way in which the sizes of the pod's images could be settled; those of images that all
    nodes report alike are settled already."""
    shape = PodInfo(pod).shape
    images = (*shape.init_images, *shape.images, *shape.volume_images)
    names = sorted({normalized_image_name(image) for image in images})
    reports = {name: _reports(state, name) for name in names}
    disputed = {name: found for name, found in reports.items() if len(found) > 1}
    if not disputed:
        return
    for sizes in islice(product(*disputed.values()), _MOST_COMBINATIONS):
        settled = dict(zip(disputed, sizes, strict=True))
        nodes = tuple(
            changed
            for node in state.objects(Node).values()
            if (changed := _with_sizes(node, settled)) is not node
        )
        text = ", ".join(
            f"{name} counts {size} bytes, as {disputed[name][size]} reports"
            for name, size in settled.items()
        )
        yield OtherSizes(nodes, f"agrees where {text}")


def _reports(state: ClusterState, name: str) -> dict[int, str]:
    """Each size of the image that is reported, and the first node that reports it."""
    found: dict[int, str] = {}
    for node in state.objects(Node).values():
        for image in node.status.images:
            if name in image.names:
                found.setdefault(image.size_bytes, node.name)
    return found


def _with_sizes(node: Node, sizes: dict[str, int]) -> Node:
    replace = msgspec.structs.replace
    images = tuple(_settled(image, sizes) for image in node.status.images)
    if images == node.status.images:
        return node
    return replace(node, status=replace(node.status, images=images))


def _settled(image: ContainerImage, sizes: dict[str, int]) -> ContainerImage:
    for name in image.names:
        size = sizes.get(name)
        if size is not None and size != image.size_bytes:
            return msgspec.structs.replace(image, size_bytes=size)
    return image


class Window(msgspec.Struct, frozen=True):
    """How far explanations look."""

    back_s: float = 2.0
    ahead_s: float = 1.0
    back_steps: int = 2_000
    ahead_steps: int = 2_000
    tries_back: int = 64
    """Moments at most that are tried before a disagreement, nearest first."""
    tries_ahead: int = 12
    """Steps at most that are supposed beforehand."""

    @property
    def lag_s(self) -> float:
        return self.back_s + self.ahead_s

    @property
    def lag_steps(self) -> int:
        return self.back_steps + self.ahead_steps


class _Question:
    """A disagreement that is being looked into."""

    def __init__(
        self, step: Step, record: ShadowCompared, pod: Pod, moments: Sequence[int]
    ) -> None:
        self.step = step
        self.record = record
        self.subject = Subject(Pod, record.key)
        self.pod = pod
        self.moments = frozenset(moments)
        """Positions of steps: the states before them are tried."""
        self.stale: Step | None = None
        """The latest step without which the two agree."""
        self.stale_and_ahead: tuple[Step, Step] | None = None


class Explainer:
    """Follows the same records at a distance."""

    def __init__(self, trail: Fold, window: Window | None = None) -> None:
        """``trail`` holds what was folded before the first step."""
        self._fold = trail
        self._state = trail.state
        self._answering = ShadowDecider(trail.state)
        self._window = window or Window()
        self._steps: deque[Step] = deque()
        """Those that the trail has not taken yet."""
        self._questions: deque[_Question] = deque()

    def due_ns(self) -> int | None:
        """When the first open question can be answered, if nothing more happens."""
        if not self._questions:
            return None
        return self._questions[0].step.at_ns + round(self._window.lag_s * NS_PER_S)

    def push(self, step: Step) -> None:
        """The next step of the state that leads."""
        self._steps.append(step)

    def ask(self, step: Step, record: ShadowCompared, pod: Pod) -> None:
        """Look into a disagreement about ``pod`` as it was; ``step`` is that of the record and was
        pushed last."""
        self._questions.append(_Question(step, record, pod, self._moments(step, record)))

    def _moments(self, asked: Step, record: ShadowCompared) -> list[int]:
        earliest_ns = asked.at_ns - round(self._window.back_s * NS_PER_S)
        found: list[int] = []
        for step in islice(reversed(self._steps), 1, self._window.back_steps):
            if step.at_ns < earliest_ns or len(found) == self._window.tries_back:
                break
            if step.subject == Subject(Pod, record.key):
                if step.before is None:
                    break  # nobody can have decided for a pod that did not exist
                continue
            if step.kind is not StepKind.NOTHING:
                found.append(step.position)
        return found

    # -- the trail ----------------------------------------------------------------------------

    def advance(self, now_ns: int) -> Iterator[ShadowExplained]:
        """Follow as far as the distance allows, and give what was explained on the way."""
        before_ns = now_ns - round(self._window.lag_s * NS_PER_S)
        while self._steps and (
            self._steps[0].at_ns <= before_ns or len(self._steps) > self._window.lag_steps
        ):
            yield from self._take()

    def drain(self) -> Iterator[ShadowExplained]:
        """Follow to the end, because nothing more will come."""
        while self._steps:
            yield from self._take()

    def _take(self) -> Iterator[ShadowExplained]:
        step = self._steps[0]
        for question in self._questions:
            if step.position in question.moments:
                self._try_moment(question, step)
        if self._questions and self._questions[0].step.position == step.position:
            yield self._explained(self._questions.popleft())
        self._steps.popleft()
        self._fold.apply(step.record)

    # -- hypotheses ---------------------------------------------------------------------------

    def _agrees(self, question: _Question, supposed: Sequence[Step]) -> bool:
        """Whether the two agree on the trail's state with these steps taken beforehand."""
        return self._agreeing(question, supposed, len(supposed)) is not None

    def _agreeing(self, question: _Question, supposed: Sequence[Step], least: int) -> int | None:
        """How many of the steps it takes, in their order and at least ``least``, to agree."""
        supposition = ShadowHypothesis(self._fold)
        try:
            if question.record.key not in self._state.pods:
                supposition.set(question.subject, question.pod)
            for taken in range(len(supposed) + 1):
                if taken:
                    supposition.suppose(supposed[taken - 1])
                if taken >= least and self._agrees_now(question):
                    return taken
        finally:
            supposition.take_back()
        return None

    def _agrees_now(self, question: _Question) -> bool:
        entry = self._state.pods[question.record.key]
        return not entry.node and self._answering.answer(entry.info).agrees_with(question.record)

    def _try_moment(self, question: _Question, step: Step) -> None:
        """The state before ``step``, with what the other did itself since then."""
        since = [
            s
            for s in self._between(step.position, question.step.position)
            if self._own(s, question)
        ]
        if self._agrees(question, since):
            question.stale = step
            return
        ahead = self._ahead(question, OWN_DOING)[:2]
        if ahead and question.stale_and_ahead is None:
            taken = self._agreeing(question, [*since, *ahead], len(since) + 1)
            if taken is not None:
                question.stale_and_ahead = step, ahead[taken - len(since) - 1]

    def _own(self, step: Step, question: _Question) -> bool:
        return step.kind in OWN_DOING and step.subject != question.subject

    def _between(self, first: int, end: int) -> list[Step]:
        offset = self._steps[0].position
        return [*islice(self._steps, first - offset, end - offset)]

    def _ahead(self, question: _Question, kinds: frozenset[StepKind]) -> list[Step]:
        """The first steps of these kinds after the disagreement that can have been under way.

        What the other scheduler did with a pod that did not exist then, or that it rejected in the
        meantime, it did later.
        """
        latest_ns = question.step.at_ns + round(self._window.ahead_s * NS_PER_S)
        begin = question.step.position - self._steps[0].position + 1
        found: list[Step] = []
        rejected = {question.record.key}
        for step in islice(self._steps, begin, begin + self._window.ahead_steps):
            if step.at_ns > latest_ns or len(found) == self._window.tries_ahead:
                break
            if isinstance(step.record, ShadowCompared) and step.record.message:
                rejected.add(step.record.key)
            subject = step.subject
            if step.kind not in kinds or subject is None or not may_be_supposed(step):
                continue
            if subject.kind is Pod and subject.key in rejected:
                continue
            if step.kind not in OWN_DOING or subject.key in self._state.pods:
                found.append(step)
        return found

    def _early(self, question: _Question, ahead: list[Step]) -> Step | None:
        """The step that makes them agree where it, or all up to it, is taken beforehand."""
        taken = self._agreeing(question, ahead, 1)
        if taken is not None:
            return ahead[taken - 1]
        return next((step for step in ahead if self._agrees(question, [step])), None)

    # -- the explanation ----------------------------------------------------------------------

    def _explained(self, question: _Question) -> ShadowExplained:
        cause, detail = self._explanation(question)
        record = question.record
        return ShadowExplained(record.number, record.key, record.uid, cause, detail)

    def _explanation(self, question: _Question) -> tuple[DisagreementCause, str]:
        """At the moment of the disagreement; what was tried before is in the question."""
        early = self._early(question, self._ahead(question, OWN_DOING))
        stale = question.stale
        if early is not None and (stale is None or _is_nearer(early, stale, question)):
            return _own_doing(early), _later(early, question)
        if stale is not None:
            return DisagreementCause.UNSEEN_CHANGE, _earlier(stale, question)
        size = self._image_size(question)
        if size:
            return DisagreementCause.IMAGE_SIZE, size
        if question.stale_and_ahead is not None:
            stale, early = question.stale_and_ahead
            both = f"{_earlier(stale, question)}; {_later(early, question)}"
            return DisagreementCause.UNSEEN_CHANGE, both
        changed = self._early(question, self._ahead(question, OWN_DOING | {StepKind.CHANGE}))
        if changed is not None:
            return DisagreementCause.LATER_CHANGE, _later(changed, question)
        return self._sampled(question)

    def _image_size(self, question: _Question) -> str:
        if not question.record.node:
            return ""
        for size in other_sizes(self._state, question.pod):
            supposition = ShadowHypothesis(self._fold)
            for node in size.nodes:
                supposition.set(Subject(type(node), node.key), node)
            agrees = self._agrees_now(question)
            supposition.take_back()
            if agrees:
                return size.text
        return ""

    def _sampled(self, question: _Question) -> tuple[DisagreementCause, str]:
        record, state = question.record, self._state
        info = PodInfo(question.pod)
        found = inspect(state, state.profiles[info.pod.spec.scheduler_name], info)
        if record.node not in found.feasible:
            return DisagreementCause.UNEXPLAINED, ""
        nodes = state.nodes.cluster_size
        sought = feasible_nodes_to_find(nodes, adaptive_percentage(nodes))
        if len(found.feasible) > sought:
            text = f"{len(found.feasible)} nodes are feasible, kube-scheduler stops at {sought}"
            return DisagreementCause.SAMPLED_NODES, text
        return DisagreementCause.UNEXPLAINED, ""


def adaptive_percentage(nodes: int) -> int:
    """kube-scheduler's ``percentageOfNodesToScore`` where it is not set."""
    return max(5, 50 - nodes // 125)


def _is_nearer(early: Step, stale: Step, question: _Question) -> bool:
    asked_ns = question.step.at_ns
    return early.at_ns - asked_ns <= asked_ns - stale.at_ns


def _own_doing(step: Step) -> DisagreementCause:
    if step.kind is StepKind.NOMINATION:
        return DisagreementCause.NOMINATED_POD
    return DisagreementCause.ASSUMED_POD


def _earlier(step: Step, question: _Question) -> str:
    ago_ms = (question.step.at_ns - step.at_ns) / 1e6
    return f"agrees on the state before {step.text}, {ago_ms:.1f} ms before"


def _later(step: Step, question: _Question) -> str:
    ahead_ms = (step.at_ns - question.step.at_ns) / 1e6
    return f"agrees where it is known already that {step.text}, seen {ahead_ms:.1f} ms after"
