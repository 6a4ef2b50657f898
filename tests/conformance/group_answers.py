"""Compares asched's group cycles with recorded ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from asched.config.registry import PluginRegistry
from asched.plugins.gang_scheduling import INCOMPLETE
from asched.state.records import AttemptFailed
from tests.conformance.group_documents import (
    CycleAnswer,
    GroupCase,
    GroupLaboratory,
    group_cases,
    name_of,
)
from tests.conformance.group_faults import broken_promises, rule_by_answer, rule_for

NO_UNIQUE_ANSWER = "no-unique-answer"
"""The rule of cases with several answers that no rule for ties makes unique: only the outcome is
compared if asched's members differ from those of the recorded runs."""


class GroupDifferences(NamedTuple):
    """One case, and how asched's answer differs."""

    place: str
    lines: list[str]
    rule: str


def group_differences(path: Path, registry: PluginRegistry) -> Iterator[GroupDifferences]:
    """The differences of each case. Raises DocumentError."""
    for number, case in enumerate(group_cases(path)):
        laboratory = GroupLaboratory(case, registry)
        answer = laboratory.answer()
        rule = rule_for(case) or rule_by_answer(case, laboratory, answer)
        name = "" if rule is None else rule.name
        if rule is not None:
            lines = [*broken_promises(rule, laboratory, answer)]
        elif case.canonical is None:
            lines = [*_unlike_natural(case, answer)]
            if not case.expect["natural"]["deterministic"]:
                # The recorded runs are a sample of the possible ones.
                outcome = [*_unlike_outcomes(case, answer)]
                name, lines = (NO_UNIQUE_ANSWER, outcome) if lines != outcome else (name, lines)
        else:
            lines = [*_unlike_canonical(case, case.canonical, answer)]
            victims = answer.victims()
            if victims and not laboratory.fits_without(victims, answer):
                lines.append(f"the group does not fit without the victims {victims}")
            lines += _unlike_second_cycle(case, laboratory, answer)
        yield GroupDifferences(f"{path.stem} case {number} ({case.name})", lines, name)


_SEVERAL_DOMAINS = re.compile(r"(more than 1 domain found for pod group: )(\S+), (\S+)")


def _in_order(value: Any) -> Any:
    """With the two domains of an error sorted: kube-scheduler names them in any order."""
    if isinstance(value, str):
        return _SEVERAL_DOMAINS.sub(lambda m: m[1] + ", ".join(sorted(m.group(2, 3))), value)
    if isinstance(value, list):
        return [_in_order(one) for one in value]
    if isinstance(value, dict):
        return {key: _in_order(one) for key, one in value.items()}
    return value


def _unlike(what: str, expected: Any, got: Any) -> Iterator[str]:
    if _in_order(expected) != _in_order(got):
        yield f"{what}: expected {expected}, got {got}"


# -- the answer with ties broken by name ----------------------------------------------------------


def _unlike_canonical(
    case: GroupCase, canonical: Mapping[str, Any], answer: CycleAnswer
) -> Iterator[str]:
    queue, cycle = case.expect["queue"], case.cycle
    dropped = {p["metadata"]["name"] for p in case.pods if "deletionTimestamp" in p["metadata"]}
    active = [name for name in queue["active"] or () if name not in dropped]
    yield from _unlike("active", active, [*answer.active])
    yield from _unlike("gated", _gated(case, dropped, answer), answer.gated)
    yield from _unlike("outcome", canonical["outcome"], answer.outcome)
    if not cycle or answer.members is None or answer.result is None:
        return
    popped = [name_of(queued.info.key) for queued in answer.members.pending]
    yield from _unlike("popped", [n for n in cycle["popped"] if n not in dropped], popped)
    yield from _unlike("condition", _condition(case, cycle), _final_condition(case, answer))
    victims = [key.rpartition("/")[2] for key in cycle.get("victims") or ()]
    yield from _unlike("victims", sorted(victims), sorted(map(name_of, answer.victims())))
    if canonical["outcome"] == "scheduled":
        nodes = {n: pod["node"] for n, pod in cycle["pods"].items() if "node" in pod}
        yield from _unlike("nodes", nodes, answer.nodes())
    yield from _unlike("steps", _recorded_steps(cycle), _steps(answer))
    yield from _unlike("placementScores", cycle.get("placementScores") or [], _scores(answer))
    yield from _unlike_messages(cycle, answer)


def _unlike_second_cycle(
    case: GroupCase, laboratory: GroupLaboratory, answer: CycleAnswer
) -> Iterator[str]:
    """Members that were left are tried again. After a preemption at least as many members must be
    placed: the recorded ones rarely go to their nominated nodes."""
    cycles = (case.canonical or {}).get("run", {}).get("cycles") or []
    if len(cycles) < 2:
        return
    again = laboratory.answer_again(answer)
    pods = cycles[1]["pods"]
    expected = {name: pod["node"] for name, pod in pods.items() if "node" in pod}
    got = answer.nodes() | again.nodes()
    if answer.outcome == "waiting":
        if len(got) < len(expected):
            yield from _unlike("placed in the second cycle", len(expected), len(got))
        return
    yield from _unlike("nodes after the second cycle", expected, got)
    if again.result is not None:
        yield from _unlike_messages(cycles[1], again)


def _gated(case: GroupCase, dropped: set[str], answer: CycleAnswer) -> dict[str, str]:
    """The recorded plugins, without the terminating members, which asched does not queue. Where two
    plugins hold a pod back, kube-scheduler names the one that it happens to call first."""
    found = {n: p for n, p in case.expect["queue"]["gated"].items() if n not in dropped}
    for pod in case.pods if not answer.active else ():
        name = pod["metadata"]["name"]
        if name in found and pod["spec"].get("schedulingGates"):
            found[name] = "SchedulingGates"
    return found


def _condition(case: GroupCase, cycle: Mapping[str, Any]) -> list[str] | None:
    found: list[str] | None = cycle.get("condition")
    return found


def _final_condition(case: GroupCase, answer: CycleAnswer) -> list[str] | None:
    """The condition after the cycle: once True, it stays."""
    status = (case.pod_group or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodGroupScheduled" and condition["status"] == "True":
            return ["True", condition["reason"], condition["message"]]
    return answer.condition


def _recorded_steps(cycle: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Each attempt: placement, pod, node and message."""
    return [
        (
            step.get("placement", ""),
            step["pod"],
            step.get("node") or step.get("nominated", ""),
            step.get("message", ""),
        )
        for step in cycle.get("trace") or ()
    ]


def _steps(answer: CycleAnswer) -> list[tuple[str, str, str, str]]:
    assert answer.result is not None
    return [
        (
            placement.name,
            name_of(member.queued.info.key),
            member.node,
            member.plain_message,
        )
        for placement, passed in answer.result.tried
        for member in passed.members
    ]


def _scores(answer: CycleAnswer) -> list[dict[str, Any]]:
    assert answer.result is not None
    return [
        {"placement": one.placement, "scores": dict(sorted(one.by_plugin)), "total": one.total}
        for one in answer.result.scores
    ]


def _unlike_messages(cycle: Mapping[str, Any], answer: CycleAnswer) -> Iterator[str]:
    """kube-scheduler reports the messages of the placement that was tried first. asched reports
    those of the placement in which most members fit: where that is another one, the recorded steps
    say what they are, without the words of PostFilter."""
    assert answer.result is not None
    messages = answer.messages()
    recorded = [placement["name"] for placement in cycle.get("placements") or ()]
    if answer.outcome == "unschedulable" and len(recorded) > 1:
        fitting = dict.fromkeys(recorded, 0)
        for step in cycle["trace"]:
            fitting[step["placement"]] += "node" in step
        reported = max(recorded, key=lambda name: fitting[name])
        yield from _unlike("placement", reported, answer.result.placement)
        if reported != recorded[0]:
            for step in (s for s in cycle["trace"] if s["placement"] == reported):
                expected, got = step.get("message", INCOMPLETE), messages.get(step["pod"], "")
                if not got.startswith(expected):
                    yield f"message of {step['pod']}: expected {expected} ..., got {got}"
            return
    expected = {
        name: pod["condition"][1]
        for name, pod in cycle["pods"].items()
        if pod.get("condition") and "node" not in pod
    }
    yield from _unlike("messages", expected, messages)


# -- the answers of natural runs ------------------------------------------------------------------


def _unlike_outcomes(case: GroupCase, answer: CycleAnswer) -> Iterator[str]:
    """An outcome, number of members or condition that no natural run showed."""
    natural = case.expect["natural"]
    for what, seen, got in (
        ("outcome", natural["outcomes"], answer.outcome),
        ("placed", natural["placed"], len(answer.nodes())),
    ):
        if got not in seen:
            yield f"{what}: expected one of {seen}, got {got}"
    condition = _final_condition(case, answer)
    if condition not in natural["conditions"]:
        yield f"condition: expected one of {natural['conditions']}, got {condition}"


def _unlike_natural(case: GroupCase, answer: CycleAnswer) -> Iterator[str]:
    """What no natural run showed."""
    yield from _unlike_outcomes(case, answer)
    natural = case.expect["natural"]
    reasons = {
        name_of(decision.key): "SchedulerError"
        for decision in answer.decisions
        if isinstance(decision, AttemptFailed)
    }
    for name, message in answer.messages().items():
        shown = [reasons.get(name, "Unschedulable"), message]
        if shown not in natural["members"][name].get("conditions", []):
            yield f"condition of {name}: {shown} was in no run"
    for name, node in answer.nodes().items():
        if node not in natural["members"][name].get("nodes", []):
            yield f"node of {name}: {node} was in no run"
