"""Pending extender calls and results in the state."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asched.config.kube_scheduler import Extender, ManagedResource
from asched.framework.pod_info import PodInfo
from asched.framework.runtime.extenders import ExtenderSpec, ExtenderVerb
from asched.framework.status import Status
from asched.model.pod import Container, ResourceRequirements
from asched.plugins.node_resources.fit import NodeResourcesFit
from asched.state import records as r
from asched.state.pending_evaluations import (
    FilterResults,
    PendingEvaluation,
    mask_of_rows,
    pack_mask,
    unpack_mask,
)
from asched.state.records import (
    ExtenderCallFailed,
    ExtenderCallRequested,
    ExtenderFailedNodes,
    ExtenderFiltered,
    ExtenderPrioritized,
)
from tests.cycle.scheduling import Scheduling, the_one
from tests.state.objects import a_node, a_pod
from tests.state.profiles import profile_of

UID, ATTEMPT = "u", 3
masks = st.lists(st.booleans(), max_size=40).map(lambda bits: np.array(bits, np.bool_))


@given(masks)
def test_masks_survive_packing(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
    bits = pack_mask(mask)
    assert unpack_mask(bits, len(mask)).tolist() == mask.tolist()
    assert len(bits) == (len(mask) + 7) // 8
    assert unpack_mask(bits, len(mask) + 5).tolist() == [*mask.tolist(), *[False] * 5]


def asked(*rows: int, verb: ExtenderVerb = ExtenderVerb.FILTER, size: int = 8) -> PendingEvaluation:
    mask = np.zeros(size, np.bool_)
    mask[list(rows)] = True
    evaluation = PendingEvaluation(UID, ATTEMPT)
    question = ExtenderCallRequested("default/p", UID, ATTEMPT, verb, (0, 1), nodes=pack_mask(mask))
    evaluation.begin(question, size)
    return evaluation


def test_each_node_may_have_another_reason() -> None:
    results, rows = FilterResults(), np.zeros(1, np.intp)
    results.statuses = (Status.unschedulable("no"),) * 40_000
    results.add(rows, ExtenderFiltered("default/p", UID, ATTEMPT, 0, b""))
    (code,) = results.codes.tolist()
    assert results.statuses[code - 1] == results.statuses[-1]


def places(size: int, *positions: int) -> bytes:
    mask = np.zeros(size, np.bool_)
    mask[list(positions)] = True
    return pack_mask(mask)


def answer(passed: bytes, *refused: ExtenderFailedNodes, extender: int = 0) -> ExtenderFiltered:
    return ExtenderFiltered("default/p", UID, ATTEMPT, extender, passed, refused)


def verdicts(answers: FilterResults) -> dict[int, str]:
    """Result by row: ``ok``, or the code and reasons."""
    codes, about = answers.column(8)
    found = {}
    for row in np.flatnonzero(about).tolist():
        status = answers.statuses[codes[row] - 1] if codes[row] else None
        found[row] = "ok" if status is None else f"{status.code.title}: {status.message}"
    return found


def test_positions_refer_to_request() -> None:
    evaluation = asked(1, 3, 4, 6)
    no_gpu = ExtenderFailedNodes("no gpu", places(4, 1))
    never = ExtenderFailedNodes("never", places(4, 0, 2), unresolvable=True)
    # A passed node is not rejected, whatever the other fields contain.
    evaluation.add(answer(places(4, 2), no_gpu, never))
    assert verdicts(evaluation.filters[0]) == {
        1: "UnschedulableAndUnresolvable: never",
        3: "Unschedulable: no gpu",
        4: "ok",
        6: "UnschedulableAndUnresolvable: ",
    }
    assert evaluation.pending == {1}


def test_later_request_adds_results() -> None:
    evaluation = asked(1, 3)
    evaluation.add(answer(places(2, 0), ExtenderFailedNodes("full", places(2, 1))))
    second = ExtenderCallRequested(
        "default/p", UID, ATTEMPT, ExtenderVerb.FILTER, (0,), places(8, 5, 7)
    )
    evaluation.begin(second, 8)
    evaluation.add(answer(places(2, 1), ExtenderFailedNodes("busy", places(2, 0))))
    assert verdicts(evaluation.filters[0]) == {
        1: "ok",
        3: "Unschedulable: full",
        5: "Unschedulable: busy",
        7: "ok",
    }


def test_reused_row_has_no_result() -> None:
    evaluation = asked(1, 3, 5)
    evaluation.on_node_deleted(3)
    evaluation.add(answer(places(3, 0, 1, 2)))
    assert verdicts(evaluation.filters[0]) == {1: "ok", 5: "ok"}
    evaluation.on_node_deleted(1)
    assert verdicts(evaluation.filters[0]) == {5: "ok"}
    scored = asked(1, 3, verb=ExtenderVerb.PRIORITIZE)
    scored.on_node_deleted(1)
    scored.add(ExtenderPrioritized("default/p", UID, ATTEMPT, 1, (7, 8)))
    assert mask_of_rows(scored.scored_rows, 8).nonzero()[0].tolist() == [3]
    assert scored.scores[1].tolist() == [7, 8]


def test_only_requested_results_are_expected() -> None:
    evaluation = asked(1)
    assert evaluation.expects(answer(b""))
    assert not evaluation.expects(answer(b"", extender=2))
    assert not evaluation.expects(ExtenderPrioritized("default/p", UID, ATTEMPT, 0, ()))
    assert not evaluation.expects(ExtenderFiltered("default/p", UID, ATTEMPT + 1, 0, b""))
    assert not evaluation.expects(ExtenderFiltered("default/p", "other", ATTEMPT, 0, b""))
    failure = ExtenderCallFailed("default/p", UID, ATTEMPT, 0, ExtenderVerb.FILTER, "down")
    evaluation.add(failure)
    assert not evaluation.expects(failure)
    assert evaluation.failures == {(ExtenderVerb.FILTER, 0): "down"}


def test_extender_interest() -> None:
    slots = ResourceRequirements(limits={"example.com/slots": "1"})
    wanting = a_pod("wanting")
    replace = msgspec.structs.replace
    as_init = replace(
        wanting, spec=replace(wanting.spec, init_containers=(Container(name="i", resources=slots),))
    )
    choosy = ExtenderSpec("http://x", managed_resources=("example.com/slots",))
    assert choosy.is_interested_in(PodInfo(as_init))
    assert not choosy.is_interested_in(PodInfo(wanting))
    assert ExtenderSpec("http://x").is_interested_in(PodInfo(wanting))


def test_secrets_are_not_recorded() -> None:
    extender = Extender(
        "https://user:secret@host:1/x",
        filter_verb="f",
        weight=2,
        managed_resources=(ManagedResource("a.b/c"),),
    )
    assert extender.spec == ExtenderSpec(
        "https://host:1/x", filter_verb="f", weight=2, managed_resources=("a.b/c",)
    )


def asked_about() -> Scheduling:
    scheduling = Scheduling(NodeResourcesFit)
    profiles = (profile_of(NodeResourcesFit),)
    extenders = (Extender("http://x", filter_verb="filter").spec,)
    scheduling.apply(r.ProfilesLoaded(profiles, extenders=extenders))
    scheduling.see(a_node("n"), a_pod("p", {"cpu": "9"}))
    assert isinstance(the_one(scheduling.decide()), r.Rejected)
    # This time an extender must be called.
    scheduling.see(a_node("m", {"cpu": "9", "pods": "9"}))
    scheduling.pass_time(60)
    assert isinstance(the_one(scheduling.decide()), ExtenderCallRequested)
    return scheduling


def test_pod_changed_during_call_waits_for_result() -> None:
    scheduling = asked_about()
    scheduling.see(a_pod("p", {"cpu": "9"}, labels={"now": "labelled"}))
    assert scheduling.decide() == []
    scheduling.apply(ExtenderFiltered("default/p", "pod-p", 2, 0, places(1, 0)))
    decision = the_one(scheduling.decide())
    assert isinstance(decision, r.Assigned)
    assert (decision.node, decision.attempt) == ("m", 2)
    assert scheduling.state.pods["default/p"].info.pod.metadata.labels == {"now": "labelled"}
