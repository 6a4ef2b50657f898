"""Random traces: all pods are accounted for, and runs are reproducible."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asched.audit.replay import ReplayVerifier
from asched.model.quantity import NS_PER_S
from asched.simulator.loop import Latencies
from asched.simulator.trace import NodeDrained, ObjectRemoved, PodCreated, PodDeleted, TraceEvent
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from tests.cycle.default_profile import installed
from tests.simulator.simulate import Simulated, at, comes, has, node, pod, simulated

SECONDS = st.integers(0, 400)
NODES = 4
PODS = 24


@st.composite
def events(draw: st.DrawFn) -> list[TraceEvent]:
    """Nodes that join late, are drained or removed, and pods of all sizes and priorities."""
    found: list[TraceEvent] = []
    for index in range(draw(st.integers(1, NODES))):
        name, joins_s = f"n{index}", draw(st.sampled_from([0, 0, 60]))
        found += has(node(name, draw(st.sampled_from(["1", "2", "4"]))), seconds=joins_s)
        match draw(st.sampled_from(["stays", "stays", "drained", "goes", "goes and returns"])):
            case "drained":
                found.append(NodeDrained(at(draw(SECONDS)), name))
            case "goes":
                found.append(ObjectRemoved(at(draw(SECONDS)), "Node", name))
            case "goes and returns":
                gone_s = joins_s + draw(SECONDS) + 1
                found.append(ObjectRemoved(at(gone_s), "Node", name))
                found += has(node(name, "4"), seconds=gone_s + draw(st.integers(1, 50)))
    for index in range(draw(st.integers(1, PODS))):
        created = pod(
            f"p{index}",
            draw(st.sampled_from(["500m", "1", "2", "3"])),
            grace_s=draw(st.sampled_from([0, 1, 30])),
            priority=draw(st.sampled_from([0, 0, 5, 10])),
        )
        comes_s = draw(SECONDS)
        runs_s = draw(st.none() | st.integers(0, 200))
        found.append(comes(created, comes_s, runs_s, recreated=draw(st.booleans())))
        if draw(st.integers(0, 5)) == 0:
            gone_s = comes_s + draw(SECONDS)
            found.append(PodDeleted(at(gone_s), created.key, created.metadata.uid))
    return found


paces = st.builds(
    Latencies,
    decision_ns=st.sampled_from([0, 0, NS_PER_S // 10, 3 * NS_PER_S]),
    bind_ns=st.sampled_from([0, NS_PER_S // 2, 40 * NS_PER_S]),
    evict_ns=st.sampled_from([0, NS_PER_S]),
)


@given(events(), paces, st.none() | st.integers(1, 600), st.integers(0, 3))
def test_random_traces_account_for_all_pods_and_capacity(
    history: list[TraceEvent], latencies: Latencies, end_s: int | None, seed: int
) -> None:
    found = simulated(history, latencies=latencies, end_s=end_s, seed=seed)
    last_s = 10**9 if end_s is None else end_s
    created = {
        e.pod.metadata.uid for e in history if isinstance(e, PodCreated) and e.at_ns <= at(last_s)
    }
    assert {p.uid for p in found.run.pods} == created
    again = simulated(history, latencies=latencies, end_s=end_s, seed=seed)
    assert _bytes(again) == _bytes(found)
    _replay(found)


def _bytes(found: Simulated) -> bytes:
    return msgspec.json.encode((found.run, found.records))


def _replay(found: Simulated) -> None:
    """Check that the records replay."""
    verifier = ReplayVerifier(Fold(ClusterState(), installed().load), complete=True)
    for seq, record in enumerate(found.records, 1):
        assert verifier.verify(seq, record) is None
    assert verifier.end(len(found.records) + 1) is None
