"""Counts of matching pods by columns against a loop over the pods."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asched.framework.pod_info import PodInfo
from asched.framework.pod_queries import PodQuery, Selector
from asched.model.selectors import LabelSelector
from asched.state.pod_columns import PodColumns
from tests.framework.selector_strategies import LABELS, SELECTORS
from tests.state.objects import a_pod

_ROWS = 5

_queries = st.builds(
    PodQuery,
    st.lists(SELECTORS.map(Selector), max_size=2).map(tuple),
    st.none() | st.frozensets(st.sampled_from(["x", "y", "z"])),
    st.booleans(),
)
_pods = st.tuples(st.sampled_from(["x", "y"]), LABELS, st.booleans())
_DELETED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def _pod(number: int, namespace: str, labels: dict[str, str], *, terminating: bool) -> PodInfo:
    pod = a_pod(f"p{number}", {}, labels=labels)
    deleted_at = _DELETED_AT if terminating else None
    metadata = msgspec.structs.replace(
        pod.metadata, namespace=namespace, uid=f"u{number}", deletion_timestamp=deleted_at
    )
    return PodInfo(msgspec.structs.replace(pod, metadata=metadata))


def _expected(query: PodQuery, on_rows: dict[int, tuple[int, PodInfo]]) -> list[int]:
    counts = [0] * _ROWS
    for row, pod in on_rows.values():
        if pod.pod.terminating and not query.count_terminating:
            continue
        counts[row] += query.matches(pod.label_set)
    return counts


@given(st.lists(st.tuples(_pods, st.integers(0, _ROWS - 1))), st.lists(_queries), st.data())
def test_columns_count_what_a_loop_counts(
    pods: list[tuple[tuple[str, dict[str, str], bool], int]],
    queries: list[PodQuery],
    data: st.DataObject,
) -> None:
    columns = PodColumns()
    on_rows: dict[int, tuple[int, PodInfo]] = {}
    for number, ((namespace, labels, terminating), row) in enumerate(pods):
        pod = _pod(number, namespace, labels, terminating=terminating)
        columns.apply([(row, pod, 1)])
        on_rows[number] = (row, pod)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from([*on_rows]))
            there, removed = on_rows.pop(gone)
            columns.apply([(there, removed, -1)])
        for query in queries:
            assert columns.count(query, _ROWS).tolist() == _expected(query, on_rows)


def test_values_of_deleted_pods_are_forgotten() -> None:
    columns = PodColumns()
    query = PodQuery((Selector(LabelSelector(match_labels={"job": "j19999"})),), None)
    for number in range(20_000):
        pod = _pod(number, "x", {"job": f"j{number}"}, terminating=False)
        columns.apply([(0, pod, 1)])
        if number < 19_999:
            columns.apply([(0, pod, -1)])
        if number % 1000 == 0:
            columns.count(query, 1)
    assert columns.count(query, 1).tolist() == [1]
