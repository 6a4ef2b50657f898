"""Plugins for tests of the kit."""

from __future__ import annotations

from typing import ClassVar

from asched.framework import (
    SUCCESS,
    Arguments,
    CycleState,
    FilterPlugin,
    Handle,
    NodeInfo,
    PodInfo,
    Scope,
    ScorePlugin,
    Status,
)


class TeamsArgs(Arguments, frozen=True):
    """``label`` names the team of a pod; at most ``most`` pods of a team share a node."""

    label: str = "team"
    most: int = 2

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most is {self.most}, expected 1 or more")


class Teams(FilterPlugin, ScorePlugin):
    """Limits the pods of a team on a node, and prefers nodes with fewer."""

    name: ClassVar[str] = "Teams"
    api_version: ClassVar[int] = 1
    arguments: ClassVar[type[TeamsArgs]] = TeamsArgs

    def __init__(self, args: TeamsArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.args = args

    def _mates(self, pod: PodInfo, node: NodeInfo) -> int:
        team = pod.labels.get(self.args.label)
        return sum(other.labels.get(self.args.label) == team for other in node.pods)

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if self._mates(pod, node) < self.args.most:
            return SUCCESS
        return Status.unschedulable("too many of the team here")

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 100 - 10 * self._mates(pod, node)


class Forgetful(ScorePlugin):
    """Impure: its results depend on a counter that outlives the profile."""

    name: ClassVar[str] = "Forgetful"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.CLUSTER
    calls: ClassVar[list[str]] = []

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        self.calls.append(node.name)
        return (len(self.calls) * 37) % 101


class Raises(FilterPlugin):
    """Raises an exception."""

    name: ClassVar[str] = "Raises"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        raise LookupError("boom")
