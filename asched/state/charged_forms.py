"""Which forms of pods were charged to a namespace: the first attempt of each form is expensive.

Counts of matching pods and answers of searches for devices are kept, so that a pod with the terms
or claims of an earlier pod costs little. If all pods of a tenant differ, each one is counted or
searched for. What is charged depends on the pod and the size of the cluster only, not on what is
known already: a replay charges the same. If a search of a single node took long, each attempt of
the form is charged: a device that another pod takes makes it necessary again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from asched.model.limits import pod_terms
from asched.model.pod import Pod, PodSpec

MAX_FORMS: Final = 2_048
"""Forms that are known, of all namespaces."""
_MAX_SPECS: Final = 256

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class ChargedForm(NamedTuple):
    """A form that is known."""

    form: str
    from_ns: int
    """When pods of the form may be attempted."""
    repeated_steps: int = 0
    """What each further attempt is charged, because a search took long."""


class ChargedForms:
    """The forms that were charged. Only the fold changes it."""

    def __init__(self, most: int) -> None:
        """``most``: forms of one namespace. The oldest are forgotten, and charged again: what is
        kept for them is limited, too."""
        self._most = most
        self._known: dict[str, dict[str, ChargedForm]] = {}
        """By namespace and name of the form."""
        self._size = 0

    def turn_ns(self, form: str) -> int | None:
        """From when on pods of this form are free; None if they are to be charged."""
        known = self._get(form)
        return None if known is None else known.from_ns

    def repeated_steps(self, form: str) -> int:
        """What each pod of this form is charged, even if it is not the first."""
        known = self._get(form)
        return 0 if known is None else known.repeated_steps

    def _get(self, form: str) -> ChargedForm | None:
        return self._known.get(_namespace(form), {}).get(form) if form else None

    def note(self, form: str, from_ns: int, most: int | None = None) -> None:
        """A pod of this form is attempted, or has a turn at that time. ``most``: a lower limit of
        forms of one namespace."""
        if not form:
            return
        forms = self._known.setdefault(_namespace(form), {})
        known = forms.get(form)
        if known is not None:
            forms[form] = ChargedForm(form, min(from_ns, known.from_ns), known.repeated_steps)
            return
        self._size += 1
        forms[form] = ChargedForm(form, from_ns)
        while len(forms) > (most or self._most):
            self._drop_oldest(forms)
        if self._size > MAX_FORMS:
            self._drop_oldest(max(self._known.values(), key=len))

    def note_repeated(self, form: str, steps: int) -> None:
        """An attempt for a pod of this form took so many steps."""
        known = self._get(form)
        if known is not None:
            self._known[_namespace(form)][form] = ChargedForm(form, known.from_ns, steps)

    def _drop_oldest(self, forms: dict[str, ChargedForm]) -> None:
        oldest = next(iter(forms))
        del forms[oldest]
        self._size -= 1
        if not forms:
            del self._known[_namespace(oldest)]

    def snapshot(self) -> tuple[ChargedForm, ...]:
        return tuple(known for forms in self._known.values() for known in forms.values())

    def restore(self, snapshot: Iterable[ChargedForm]) -> None:
        for known in snapshot:
            self.note(known.form, known.from_ns)
            self.note_repeated(known.form, known.repeated_steps)


def form_of(pod: Pod, content: object) -> str:
    """The name of a form with this content."""
    return f"{pod.namespace}/{blake2b(_encode(content), digest_size=16).hexdigest()}"


def _namespace(form: str) -> str:
    return form.partition("/")[0]


class SpecForms:
    """The forms of pods by what a function reads of them. Pods of a template share them."""

    def __init__(self, read: Callable[[Pod], FormContent]) -> None:
        self._read = read
        self._known: OrderedDict[int, tuple[PodSpec, str]] = OrderedDict()
        """By identity of the specification, which is kept alive."""

    def of(self, pod: Pod) -> str:
        """The form of the pod."""
        spec = pod.spec
        known = self._known.get(id(spec))
        if known is not None and known[1].startswith(f"{pod.namespace}/"):
            return known[1]
        content = self._read(pod)
        form = form_of(pod, content.value)
        if content.of_spec:
            self._known[id(spec)] = (spec, form)
            if len(self._known) > _MAX_SPECS:
                self._known.popitem(last=False)
        return form


class FormContent(NamedTuple):
    """What distinguishes a form."""

    value: object
    of_spec: bool = True
    """Whether it depends on the specification only."""


def terms_form(pod: Pod) -> FormContent:
    """The affinity terms and spread constraints."""
    spec = pod.spec
    keyed = _reads_own_labels(spec)
    labels = pod.metadata.labels if keyed else None
    return FormContent((spec.affinity, spec.topology_spread_constraints, labels), not keyed)


def victims_form(pod: Pod) -> FormContent:
    """The priority and all that filters of single nodes read."""
    spec = pod.spec
    return FormContent(
        (
            "victims",
            spec.priority,
            spec.containers,
            spec.init_containers,
            spec.overhead,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
        )
    )


def _reads_own_labels(spec: PodSpec) -> bool:
    """Whether terms or constraints select by labels of the pod itself."""
    if any(constraint.match_label_keys for constraint in spec.topology_spread_constraints):
        return True
    return any(term.match_label_keys or term.mismatch_label_keys for term in pod_terms(spec))
