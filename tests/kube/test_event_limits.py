"""Events of one namespace, or about one object, do not displace those of others."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from asched.kube.event_limits import OBJECT_BURST, OBJECT_INTERVAL_S, FairQueue, ObjectLimit
from asched.kube.events import EventRecorderSettings
from asched.kube.pod_writer import PodTarget
from tests.kube.test_events import POD, stage

Item = tuple[str, int]


def fair_queue(limit: int) -> FairQueue[Item]:
    return FairQueue(limit, lambda item: item[0])


def test_namespaces_take_turns() -> None:
    queue = fair_queue(10)
    for number in range(4):
        queue.put(("loud", number))
    queue.put(("quiet", 0))
    assert [queue.take() for _ in range(len(queue))] == [
        ("loud", 0),
        ("quiet", 0),
        ("loud", 1),
        ("loud", 2),
        ("loud", 3),
    ]


def test_full_queue_drops_the_oldest_of_the_loudest_namespace() -> None:
    queue = fair_queue(4)
    queue.put(("quiet", 0))
    dropped = [queue.put(("loud", number)) for number in range(6)]
    assert dropped == [None, None, None, ("loud", 0), ("loud", 1), ("loud", 2)]
    assert ("quiet", 0) in [queue.take() for _ in range(4)]
    assert not queue


@given(st.lists(st.sampled_from("aaaabc") | st.none()), st.integers(1, 6))
def test_queue_keeps_order_and_share(steps: list[str | None], limit: int) -> None:
    queue, left = fair_queue(limit), dict[str, list[int]]()
    for number, namespace in enumerate(steps):
        if namespace is None:
            if not len(queue):
                continue
            name, taken = queue.take()
            assert taken == left[name].pop(0)
            continue
        counts = Counter({name: len(numbers) for name, numbers in left.items()})
        dropped = queue.put((namespace, number))
        if dropped is not None:
            assert left[dropped[0]].pop(0) == dropped[1]
            assert counts[dropped[0]] == max(counts.values())
        left.setdefault(namespace, []).append(number)
        assert len(queue) == sum(map(len, left.values())) <= limit


def test_events_about_one_object_are_limited_as_in_client_go() -> None:
    limit = ObjectLimit()
    assert [limit.allows("p", 0.0) for _ in range(OBJECT_BURST + 1)] == [True] * OBJECT_BURST + [
        False
    ]
    assert limit.allows("q", 0.0)
    assert not limit.allows("p", OBJECT_INTERVAL_S - 1)
    assert limit.allows("p", OBJECT_INTERVAL_S)
    assert not limit.allows("p", OBJECT_INTERVAL_S)


async def test_pod_with_ever_new_messages() -> None:
    settings = EventRecorderSettings(queue_limit=10_000)
    async with stage(settings) as s:
        for number in range(100):
            s.recorder.failed_scheduling(POD, f"message {number}")
        s.recorder.failed_scheduling(POD, "message 0")
        s.recorder.scheduled(POD, "n1")
        s.recorder.failed_scheduling(PodTarget("default", "q", "uid-q"), "no")
        await s.sent(OBJECT_BURST + 2)
        assert s.recorder.counts.limited == 100 - OBJECT_BURST
        about = Counter(event["involvedObject"]["name"] for event in s.events)
    assert about == {"p": OBJECT_BURST + 1, "q": 1}
