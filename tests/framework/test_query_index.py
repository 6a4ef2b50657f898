"""The index of rejected pods against a search of each pod's queries."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from asched.framework.caching import ChangeLog
from asched.framework.pod_info import PodInfo, QueuedPod, label_set_of
from asched.framework.pod_queries import PodQuery, Selector
from asched.framework.query_index import AwaitedIndex, AwaitedQueries, RejectedPods
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from tests.framework.selector_strategies import LABELS, SELECTORS
from tests.state.objects import a_pod

_KEYS = ("default/a", "default/b", "default/c")
_NAMESPACES = st.sampled_from(["default", "other"])
_queries = st.lists(
    st.builds(
        PodQuery,
        st.lists(SELECTORS.map(Selector), min_size=1, max_size=2).map(tuple),
        st.none() | st.frozensets(_NAMESPACES),
    ),
    max_size=2,
)
_awaited = st.builds(AwaitedQueries, _queries, _queries, st.booleans())
_steps = st.lists(
    st.tuples(st.sampled_from(_KEYS), _awaited)
    | st.tuples(st.sampled_from(_KEYS), st.none())
    | st.tuples(_NAMESPACES, LABELS, LABELS, st.sampled_from(["add", "update", "delete"])),
    max_size=12,
)


def _labelled(namespace: str, labels: dict[str, str]) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", namespace=namespace, labels=labels))


def _expected(awaited: AwaitedQueries, before: Pod | None, after: Pod | None) -> bool:
    def begins(queries: Sequence[PodQuery], new: Pod | None, old: Pod | None) -> bool:
        return new is not None and any(
            query.matches(label_set_of(new))
            and not (old is not None and query.matches(label_set_of(old)))
            for query in queries
        )

    return (
        awaited.any_pod
        or begins(awaited.gained, after, before)
        or begins(awaited.lost, before, after)
    )


@given(_steps, st.sampled_from([2, 256]))
def test_index_selects_what_a_search_selects(steps: list[tuple[object, ...]], most: int) -> None:
    """Pods begin and cease to wait, and repeated changes of other pods are asked about."""
    wanted: dict[str, AwaitedQueries] = {}
    waiting: dict[str, QueuedPod] = {}
    rejected = RejectedPods(waiting, ChangeLog(most))
    index = AwaitedIndex(lambda info: wanted[info.key])
    asked: list[tuple[Pod | None, Pod | None]] = []
    for step in steps:
        match step:
            case (str() as key, None):
                waiting.pop(key, None)
                rejected.changes.append(key)
            case (str() as key, AwaitedQueries() as awaited):
                wanted[key] = awaited
                waiting[key] = QueuedPod(PodInfo(a_pod(key.rpartition("/")[2])), 0)
                rejected.changes.append(key)
            case (str() as namespace, dict() as old, dict() as new, str() as action):
                before = None if action == "add" else _labelled(namespace, old)
                after = None if action == "delete" else _labelled(namespace, new)
                asked.append((before, after))
        for before, after in asked:
            found = index.select(
                rejected,
                0,
                None if before is None else label_set_of(before),
                None if after is None else label_set_of(after),
            )
            expected = {key for key in waiting if _expected(wanted[key], before, after)}
            assert {*found} == expected
