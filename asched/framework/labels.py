"""Label sets, interned, so that what a selector says of one is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from weakref import WeakValueDictionary

from asched.model.pod import Pod


class LabelSet:
    """A namespace with a set of labels: all that selecting a pod depends on. Interned."""

    __slots__ = ("__weakref__", "labels", "namespace", "number")

    def __init__(self, namespace: str, labels: Mapping[str, str], number: int) -> None:
        self.namespace = namespace
        self.labels = labels
        self.number = number
        """Unique for the life of the process: what answers are remembered by."""


_label_sets: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]]], LabelSet] = (
    WeakValueDictionary()
)
_numbers = count(1)


def label_set_of(pod: Pod) -> LabelSet:
    """The interned label set of a pod."""
    labels = pod.metadata.labels
    key = (pod.metadata.namespace, frozenset(labels.items()))
    known = _label_sets.get(key)
    if known is None:
        known = LabelSet(pod.metadata.namespace, labels, next(_numbers))
        _label_sets[key] = known
    return known
