"""What built-in plugins of the pod-by-pod profiles may ask while they serve in a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from asched.framework.cluster import Cluster
from asched.framework.cycle_state import CycleState
from asched.framework.interface import Eviction, Waiting
from asched.framework.pod_info import PodInfo
from asched.framework.scoring import draw
from asched.framework.trial import Fit
from asched.state.cluster import ClusterState


class SessionHandle:
    """A :class:`asched.framework.interface.Handle` on the cluster as a session sees it. Nobody waits
    and nobody is nominated in it."""

    def __init__(self, state: ClusterState, cluster: Cluster, scheduler_name: str) -> None:
        self._state = state
        self._cluster = cluster
        self._scheduler_name = scheduler_name

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def scheduler_name(self) -> str:
        return self._scheduler_name

    def waiting_pods(self) -> Sequence[Waiting]:
        return ()

    def nominated_node(self, pod: PodInfo) -> str:
        return ""

    def nominated_pods(self, node_name: str) -> Sequence[PodInfo]:
        return ()

    @property
    def evictions(self) -> Mapping[str, Eviction]:
        return self._state.evictions

    def is_preempting(self, uid: str) -> bool:
        return False

    @property
    def preempted_for(self) -> Collection[str]:
        return ()

    def fit(self, state: CycleState, pod: PodInfo) -> Fit:
        raise RuntimeError("no plugin of a session tries pods on and off nodes")

    def draw(self, words: str, below: int) -> int:
        return draw(self._state.seed, words, below)
