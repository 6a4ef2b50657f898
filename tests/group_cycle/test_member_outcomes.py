"""What becomes of a group by what becomes of its members one by one: they fit, wait on Permit,
are rejected, need victims, or fail. And the conditions of the group in successive cycles.

The members are on two nodes: one is empty, and three pods of lower priority fill the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
import pytest

from asched.framework.cycle_state import CycleState
from asched.framework.interface import (
    FilterPlugin,
    PlacementGeneratePlugin,
    PlacementScorePlugin,
    Plugin,
)
from asched.framework.nodes import NodeInfo, Nodes
from asched.framework.placements import (
    GeneratedPlacements,
    GroupAssignments,
    GroupInCycle,
    GroupPlacement,
)
from asched.framework.pod_info import PodInfo
from asched.framework.status import SUCCESS, Status
from asched.model.pod import Pod
from asched.plugins.default_preemption.plugin import DefaultPreemption
from asched.plugins.pod_group_pods_count import PodGroupPodsCount
from asched.plugins.topology_placement import TopologyPlacementGenerator
from asched.state import records as r
from asched.state.group_records import GroupOutcome, PodGroupAttempted
from asched.state.session_records import PodGroupStatusDecided
from tests.group_cycle.groups import PLUGINS, GroupScheduling, a_group, outcomes, victims
from tests.group_cycle.test_situations import FILTERS, Reviewer, node, other
from tests.plugins.gangs import check_replay, member, settle

SCHEDULED, WAITING = GroupOutcome.SCHEDULED, GroupOutcome.WAITING
UNSCHEDULABLE, ERROR = GroupOutcome.UNSCHEDULABLE, GroupOutcome.ERROR
_replace = msgspec.structs.replace


class FilterFails(FilterPlugin):
    """Fails for members with a name that ends so."""

    name: ClassVar[str] = "FilterFails"
    api_version: ClassVar[int] = 1

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        if pod.name.endswith("unfiltered"):
            raise RuntimeError("no answer")
        return SUCCESS


OUTCOME_PLUGINS: tuple[type[Plugin], ...] = (FilterFails, *FILTERS, Reviewer)


def made(name: str) -> Pod:
    """A member that does what its name says; ``2-preempts-waits`` needs victims, and waits then."""
    if "toolarge" in name:
        return member("a", name, "50", priority=10)
    pod = member("a", name, priority=10)
    disk = "hdd" if "preempts" in name else "tape" if "nowhere" in name else "ssd"
    return _replace(pod, spec=_replace(pod.spec, node_selector={"disk": disk}))


class Case(NamedTuple):
    """A group of these members, and what the first cycle finds."""

    members: tuple[str, ...]
    minimum: int
    outcome: GroupOutcome
    placed: int = 0
    victims: int = 0
    """In this cycle and later ones."""
    finally_placed: int | None = None
    """Members with a node once victims are gone; None for ``placed``."""


FITS, WAITS = ("1-fits", "2-fits", "3-fits"), ("1-waits", "2-waits", "3-waits")
CASES: Mapping[str, Case] = {
    "all fit": Case(FITS, 3, SCHEDULED, 3),
    "two wait": Case(("1-waits", "2-waits", "3-fits"), 3, SCHEDULED, 3),
    "all wait": Case(WAITS, 3, SCHEDULED, 3),
    "the last one waits": Case(("1-fits", "2-fits", "3-waits"), 3, SCHEDULED, 3),
    "one waits, Permit rejects a surplus member": Case(
        ("1-waits", "2-rejected", "3-fits"), 2, SCHEDULED, 2
    ),
    "one waits, Permit rejects one of the minimum": Case(
        ("1-waits", "2-rejected", "3-fits"), 3, UNSCHEDULABLE
    ),
    "all need victims": Case(("1-preempts", "2-preempts", "3-preempts"), 3, WAITING, 0, 3, 3),
    "all need victims and will wait": Case(
        ("1-preempts-waits", "2-preempts-waits"), 2, WAITING, 0, 2, 2
    ),
    "one needs victims, two fit": Case(("1-preempts", "2-waits", "3-fits"), 3, WAITING, 0, 1, 3),
    "a surplus member needs victims": Case(
        ("1-preempts", "2-fits", "3-fits"), 2, SCHEDULED, 2, 1, 3
    ),
    "one fits nowhere, one needs victims, one fits": Case(
        ("1-toolarge", "2-preempts", "3-fits"), 2, WAITING, 0, 1, 2
    ),
    "victims would not complete the minimum": Case(
        ("1-toolarge", "2-preempts", "3-fits"), 3, UNSCHEDULABLE
    ),
    "none of the nodes can ever do for one": Case(
        ("1-nowhere", "2-toolarge", "3-toolarge"), 3, UNSCHEDULABLE
    ),
    "a filter fails": Case(("1-fits", "2-unfiltered", "3-fits"), 1, ERROR),
    "Permit fails": Case(("1-fits", "2-fails", "3-fits"), 1, ERROR),
    "a filter fails after one found victims": Case(
        ("1-preempts", "2-unfiltered", "3-fits"), 1, ERROR
    ),
    "Permit fails after one found victims": Case(("1-preempts", "2-fails", "3-fits"), 1, ERROR),
    "without minimum, some fit": Case(("1-toolarge", "2-fits", "3-nowhere"), 0, SCHEDULED, 1),
    "without minimum, none fits": Case(("1-toolarge", "2-toolarge"), 0, UNSCHEDULABLE),
    "without minimum, all need victims": Case(("1-preempts", "2-preempts"), 0, WAITING, 0, 2, 2),
}


def scheduling(*plugins: type[Plugin], group_preemption: bool) -> GroupScheduling:
    s = GroupScheduling(plugins=plugins, group_preemption=group_preemption)
    s.see(node(0, "r0", 9), node(1, "r0", 3, disk="hdd"))
    s.see(*(other(f"v{number}", "n1") for number in range(3)))
    return s


def with_node(s: GroupScheduling) -> list[str]:
    return sorted(e.info.name for e in s.state.pods.values() if e.node and e.info.name[0] != "v")


@pytest.mark.parametrize("group_preemption", [False, True], ids=["members", "group"])
@pytest.mark.parametrize("name", CASES)
def test_group_by_its_members(name: str, group_preemption: bool) -> None:
    """``group``: the group preempts as one. Kube-scheduler rejects a group if all its members wait
    on Permit."""
    case = CASES[name]
    s = scheduling(*OUTCOME_PLUGINS, group_preemption=group_preemption)
    s.see(a_group("a", case.minimum, priority=10), *map(made, case.members))
    decisions = s.next()
    assert outcomes(decisions) == [case.outcome]
    assert len(with_node(s)) == case.placed
    assert bool(victims(decisions)) == (case.outcome is WAITING)
    decided = [d for d in decisions if not isinstance(d, PodGroupAttempted | PodGroupStatusDecided)]
    assert len(decided) == len(case.members)
    if case.outcome is not ERROR:
        for _ in range(4):
            settle(s, 1)
            s.evict()
        expected = case.placed if case.finally_placed is None else case.finally_placed
        assert len(with_node(s)) == expected
        assert 3 - sum(name.startswith("default/v") for name in s.state.pods) == case.victims
    check_replay(s, *OUTCOME_PLUGINS)


@pytest.mark.parametrize("group_preemption", [False, True], ids=["members", "group"])
def test_group_evicts_nothing_without_the_plugin(group_preemption: bool) -> None:
    """Members need DefaultPreemption. A group that preempts as one does not."""
    plugins = [plugin for plugin in FILTERS if plugin is not DefaultPreemption]
    s = scheduling(*plugins, group_preemption=group_preemption)
    s.see(a_group("a", 1, priority=10), made("1-preempts"))
    assert outcomes(s.next()) == [WAITING if group_preemption else UNSCHEDULABLE]


def test_members_are_tried_by_priority_and_arrival() -> None:
    s = GroupScheduling()
    s.see(node(0, "r0", 2), a_group("a", 2))
    for name, priority in (("late", 5), ("low", 0), ("first", 5), ("high", 7)):
        s.see(member("a", name, priority=priority))
        s.pass_time(1)
    assert outcomes(s.next()) == [SCHEDULED]
    assert with_node(s) == ["high", "late"]


# -- conditions -----------------------------------------------------------------------------------

TOO_LARGE, FAILS, FIT = ("1-toolarge", "2-fits"), ("1-unfiltered", "2-fits"), ("1-fits", "2-fits")
CONDITIONS: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "scheduled at once": ((FIT, "True Scheduled"),),
    "unschedulable, then scheduled": (
        (TOO_LARGE, "False Unschedulable"),
        (FIT, "True Scheduled"),
    ),
    "an error, then scheduled": ((FAILS, "False SchedulerError"), (FIT, "True Scheduled")),
    "unschedulable, then an error": (
        (TOO_LARGE, "False Unschedulable"),
        (FAILS, "False SchedulerError"),
    ),
    "an error, then unschedulable": (
        (FAILS, "False SchedulerError"),
        (TOO_LARGE, "False Unschedulable"),
    ),
    "the same error again": ((FAILS, "False SchedulerError"), (FAILS, "")),
    "unschedulable once it was scheduled": ((FIT, "True Scheduled"), (TOO_LARGE, "")),
    "an error once it was scheduled": ((FIT, "True Scheduled"), (FAILS, "")),
    "scheduled again": ((FIT, "True Scheduled"), (FIT, "")),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_of_successive_cycles(name: str) -> None:
    """Each cycle has new members. Empty: nothing is written."""
    s = GroupScheduling(plugins=OUTCOME_PLUGINS)
    s.see(node(0, "r0", 9), a_group("a", 2))
    for members, expected in CONDITIONS[name]:
        for key, entry in [*s.state.pods.items()]:
            s.apply(r.ObjectDeleted("Pod", key, entry.info.uid))
        s.see(*map(made, members))
        decided = [d for d in s.next() if isinstance(d, PodGroupStatusDecided)]
        found = [f"{d.conditions[-1].status} {d.conditions[-1].reason}" for d in decided]
        assert found == ([expected] if expected else [])
        s.pass_time(600)
    check_replay(s, *OUTCOME_PLUGINS)


def test_pod_group_that_is_gone_gets_no_condition() -> None:
    s = GroupScheduling()
    s.see(node(0, "r0", 9), a_group("a", 2), made("1-fits"), made("2-fits"))
    s.apply(r.ObjectDeleted("PodGroup", "default/a", "group-a"))
    assert s.next() == ()
    assert with_node(s) == []


# -- placements -----------------------------------------------------------------------------------


class EachNode(PlacementGeneratePlugin):
    """A placement for each node."""

    name: ClassVar[str] = "EachNode"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        rows = np.flatnonzero(nodes.alive)
        named = ((nodes.names[row], rows[at : at + 1]) for at, row in enumerate(rows.tolist()))
        return GeneratedPlacements(placements=tuple(GroupPlacement(*one) for one in named))


class Nothing(PlacementGeneratePlugin):
    name: ClassVar[str] = "Nothing"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        return GeneratedPlacements()


class GeneratorError(PlacementGeneratePlugin):
    name: ClassVar[str] = "GeneratorError"
    api_version: ClassVar[int] = 1

    def generate_placements(self, group: GroupInCycle, nodes: Nodes) -> GeneratedPlacements:
        return GeneratedPlacements(Status.error("no topology"))


class First(PlacementScorePlugin):
    """Scores by a table."""

    name: ClassVar[str] = "First"
    api_version: ClassVar[int] = 1
    scores: ClassVar[dict[str, int]] = {}

    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        return self.scores[assignments.placement.name]


class Second(First):
    name: ClassVar[str] = "Second"
    scores: ClassVar[dict[str, int]] = {}


class ScoreRaises(PlacementScorePlugin):
    name: ClassVar[str] = "ScoreRaises"
    api_version: ClassVar[int] = 1

    def score_placement(self, group: GroupInCycle, assignments: GroupAssignments) -> int:
        raise RuntimeError("no score")


class Placements(NamedTuple):
    """Two nodes, each a placement, with the scores of two plugins of weights 1 and 2."""

    first: tuple[int, int] = (1, 1)
    second: tuple[int, int] = (1, 1)
    cores: tuple[int, int] = (2, 2)
    chosen: str = ""
    outcome: GroupOutcome = SCHEDULED
    message: str = ""
    generator: type[Plugin] = EachNode
    scorer: type[Plugin] = Second


PLACEMENTS: Mapping[str, Placements] = {
    "higher score of the first one": Placements((2, 1), chosen="n0"),
    "higher score of the second one": Placements((1, 2), chosen="n1"),
    "weights decide for the first one": Placements((50, 75), (25, 10), chosen="n0"),
    "weights decide for the second one": Placements((75, 50), (10, 25), chosen="n1"),
    "one without room": Placements((1, 9), cores=(2, 1), chosen="n0"),
    "none with room": Placements(
        cores=(1, 1), outcome=UNSCHEDULABLE, message="0/2 placements are available"
    ),
    "none": Placements(
        outcome=UNSCHEDULABLE, message="no feasible placements found", generator=Nothing
    ),
    "generator fails": Placements(outcome=ERROR, message="no topology", generator=GeneratorError),
    "score fails": Placements(
        outcome=ERROR,
        message="plugin ScoreRaises at PlacementScore: RuntimeError: no score",
        scorer=ScoreRaises,
    ),
    "nothing to score": Placements(cores=(1, 2), chosen="n1", scorer=ScoreRaises),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_choice_of_a_placement(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = PLACEMENTS[name]
    monkeypatch.setattr(First, "scores", dict(zip(("n0", "n1"), case.first, strict=True)))
    monkeypatch.setattr(Second, "scores", dict(zip(("n0", "n1"), case.second, strict=True)))
    replaced: dict[type[Plugin], type[Plugin]] = {
        TopologyPlacementGenerator: case.generator,
        PodGroupPodsCount: First,
    }
    plugins = (*(replaced.get(p, p) for p in PLUGINS), case.scorer)
    s = GroupScheduling(plugins=plugins, weights={case.scorer.name: 2})
    s.see(*(node(number, "r0", cores) for number, cores in enumerate(case.cores)))
    s.see(a_group("a", 2, rack=True), made("1-fits"), made("2-fits"))
    decisions = s.next()
    assert outcomes(decisions) == [case.outcome]
    nodes = {entry.node for entry in s.state.pods.values()}
    assert nodes == {case.chosen}
    header = decisions[0]
    assert isinstance(header, PodGroupAttempted)
    assert case.message in header.message
    check_replay(s, *plugins)
