"""The count of active pods by namespace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asched.framework.pod_info import PodInfo, QueuedPod
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod
from asched.state.pod_heap import ActivePods

NAMESPACES = ("a", "a-b", "b")

Keys = st.tuples(st.sampled_from(NAMESPACES), st.integers(0, 2))


def a_queued_pod(namespace: str, number: int) -> QueuedPod:
    metadata = ObjectMeta(name=f"p{number}", namespace=namespace, uid=f"{namespace}-{number}")
    return QueuedPod(PodInfo(Pod(metadata=metadata)), 0)


@given(st.lists(st.tuples(st.sampled_from(("push", "pop", "copy", "clear")), Keys), max_size=30))
def test_counts_equal_a_scan(steps: list[tuple[str, tuple[str, int]]]) -> None:
    active = ActivePods()
    for number, (step, (namespace, name)) in enumerate(steps):
        if step == "push":
            active.push(a_queued_pod(namespace, name), (1, number))
        elif step == "pop":
            active.pop(f"{namespace}/p{name}")
        elif step == "copy":
            before, active = active, active.copy()
            before.clear()
        else:
            active.clear()
        for each in NAMESPACES:
            expected = any(pod.info.namespace != each for pod in active.pods.values())
            assert active.has_others(each) == expected
