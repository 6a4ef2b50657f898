"""Inspections of attempts, on recorded kube-scheduler cases and on own cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from asched.config.file import parse
from asched.config.kube_scheduler import API_VERSION, KIND
from asched.cycle.inspect import AttemptOutcome, Inspection, inspect
from asched.framework.pod_info import PodInfo
from asched.framework.status import Status
from asched.model.pod import Pod
from asched.model.resources import Resource
from asched.state.cluster import ClusterState
from asched.state.fold import Fold
from asched.state.records import EngineStarted, ObjectObserved, ProfilesLoaded, TurnStarted
from tests.audit.recording import REGISTRY, Recording, node, pod
from tests.conformance.answers import best_nodes, pre_filter_rejections
from tests.conformance.documents import Case, Document, documents

FILES_PER_TOPIC = 3


def inspected(recording: Recording, wanted: Pod) -> Inspection:
    return inspect(recording.state, recording.state.profiles["default-scheduler"], PodInfo(wanted))


# -- own cases ----------------------------------------------------------------------------------


def test_filters_run_independently() -> None:
    recording = Recording()
    recording.see(node("bad", "1", taint="x"), node("good", "4"))
    found = inspected(recording, pod("p", "2"))
    assert found.filter is not None
    assert {name: [*on] for name, on in found.filter.plugins.items()} == {
        "TaintToleration": ["bad"],
        "NodeResourcesFit": ["bad"],
    }
    assert found.filter.nodes["bad"].plugin == "TaintToleration"
    assert (found.feasible, best_nodes(found)) == (("good",), ("good",))
    # A single feasible node needs no scores; an inspection computes them anyway.
    assert found.total == (sum(s.normalized[0] * s.weight for s in found.scores.values()),)


def test_feasible_nodes_are_sorted_with_their_scores() -> None:
    recording = Recording()
    recording.see(node("z", "8"), node("a", "2"), node("m", "4"))
    found = inspected(recording, pod("p", "1"))
    assert found.feasible == ("a", "m", "z")
    assert best_nodes(found) == ("z",)
    assert found.total[0] < found.total[1] < found.total[2]
    fit = found.scores["NodeResourcesFit"]
    assert fit.raw[0] < fit.raw[1] < fit.raw[2]


@pytest.mark.parametrize(
    ("wanted", "outcome"),
    [
        (pod("p", schedulerName="other"), AttemptOutcome.IGNORED),
        (pod("p", schedulingGates=[{"name": "g"}]), AttemptOutcome.GATED),
        (pod("p"), AttemptOutcome.UNSCHEDULABLE),
    ],
)
def test_outcomes_without_nodes(wanted: Pod, outcome: AttemptOutcome) -> None:
    found = inspected(Recording(), wanted)
    assert found.outcome is outcome
    assert (found.filter, found.feasible) == (None, ())


def test_inspection_does_not_change_the_state() -> None:
    recording = Recording()
    recording.see(*(node(f"n{i}") for i in range(4)), pod("p"))
    first = inspected(recording, pod("p"))
    assert inspected(recording, pod("p")) == first
    [decision] = recording.decide()
    assert getattr(decision, "node", "") in best_nodes(first)


# -- recorded -----------------------------------------------------------------------------------


def recorded_topics() -> list[str]:
    return [
        "resources", "taints-tolerations", "node-affinity", "nodename-ports", "image-locality",
        "interpod-affinity", "topology-spread", "volumes", "scheduling-gates", "declared-features",
        "preemption", "fit-strategies", "mixed", "edge",
    ]  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("topic", recorded_topics())
def test_inspection_equals_recorded_kube_scheduler_results(shared_dir: Path, topic: str) -> None:
    paths = documents(shared_dir / "golden" / "kube", [topic])[:FILES_PER_TOPIC]
    assert paths
    for path in paths:
        document = Document(path)
        for case in document.cases:
            found = inspect_recorded(document, case)
            assert answered(found) == expected(case.expect), f"{path.name} {case.pod.name}"


def inspect_recorded(document: Document, case: Case) -> Inspection:
    config = {"apiVersion": API_VERSION, "kind": KIND, **(document.config or {})}
    profiles = parse(yaml.safe_dump(config), document.name, REGISTRY).profiles
    state = ClusterState()
    fold = Fold(state, REGISTRY.load)
    fold.apply_all([EngineStarted("test", 0), ProfilesLoaded(profiles), TurnStarted(1)])
    for resource in Resource:
        for seen in document.objects(resource):
            fold.apply(ObjectObserved(seen))
    # The recorded case counts the pod on the node that it names.
    fold.apply(ObjectObserved(case.pod))
    return inspect(state, state.profiles["default-scheduler"], PodInfo(case.pod))


def status(given: Status) -> list[Any]:
    return [given.code.title, sorted(given.reasons)]


def answered(found: Inspection) -> dict[str, Any]:
    """An inspection in the recorded form, without what PostFilter adds."""
    answer: dict[str, Any] = {
        "outcome": found.outcome.value,
        "feasible": list(found.feasible),
        "nominatedNodeUsed": found.nominated_node_used,
        "preEnqueue": {name: status(given) for name, given in found.pre_enqueue.items()},
    }
    if found.pre_filter is not None:
        ended = found.pre_filter.status
        names = found.pre_filter.node_names
        rejections = pre_filter_rejections(found.pre_filter)
        answer["preFilter"] = {
            "plugins": {name: status(s) for name, s in rejections.items()},
            "skipped": list(found.pre_filter.skipped),
            "nodeNames": None if names is None else list(names),
            "restrictedBy": list(found.pre_filter.restricted_by),
            "status": [*status(ended), ended.plugin] if ended is not None else None,
        }
    if found.filter is not None:
        answer["filter"] = {
            "plugins": {
                name: {on: status(s) for on, s in rejected.items()}
                for name, rejected in found.filter.plugins.items()
            },
            "nodes": {on: [s.plugin, *status(s)] for on, s in found.filter.nodes.items()},
        }
    if found.outcome is AttemptOutcome.SCHEDULED:
        answer["preScore"] = list(found.score_skipped)
        answer["score"] = {
            name: (scores.weight, list(scores.raw), list(scores.normalized))
            for name, scores in found.scores.items()
        }
        answer["total"], answer["best"] = list(found.total), list(best_nodes(found))
    if found.outcome is AttemptOutcome.UNSCHEDULABLE:
        answer["message"] = without_post_filter(found.message)
    return answer


def expected(expect: dict[str, Any]) -> dict[str, Any]:
    """A recorded result in the form of :func:`answered`, with explicit defaults."""

    def sort(given: list[Any]) -> list[Any]:
        return [given[0], sorted(given[1]), *given[2:]]

    answer: dict[str, Any] = {
        "outcome": expect["outcome"],
        "feasible": expect["feasible"],
        "nominatedNodeUsed": expect.get("nominatedNodeUsed", False),
        "preEnqueue": {name: sort(s) for name, s in expect.get("preEnqueue", {}).items()},
    }
    if "preFilter" in expect:
        found = expect["preFilter"]
        answer["preFilter"] = {
            "plugins": {name: sort(s) for name, s in found.get("plugins", {}).items()},
            "skipped": found.get("skipped", []),
            "nodeNames": found.get("nodeNames"),
            "restrictedBy": found.get("restrictedBy", []),
            "status": sort(found["status"]) if "status" in found else None,
        }
    if "filter" in expect:
        answer["filter"] = {
            "plugins": {
                name: {on: sort(s) for on, s in rejected.items()}
                for name, rejected in expect["filter"].get("plugins", {}).items()
            },
            "nodes": {
                on: [s[0], s[1], sorted(s[2])]
                for on, s in expect["filter"].get("nodes", {}).items()
            },
        }
    if expect["outcome"] == "scheduled":
        answer["preScore"] = expect["preScore"].get("skipped", [])
        answer["score"] = {
            name: (scores["weight"], scores["raw"], scores["normalized"])
            for name, scores in expect["score"].items()
        }
        answer["total"], answer["best"] = expect["total"], expect["best"]
    if expect["outcome"] == "unschedulable":
        answer["message"] = without_post_filter(expect["message"])
    return answer


def without_post_filter(message: str) -> str:
    return message.split(". ")[0].rstrip(".")
