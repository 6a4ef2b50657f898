"""Answers of Permit plugins about waiting pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asched.framework.pod_info import PodInfo
from asched.state import records as r
from asched.state.waiting_pods import WaitingPods, WaitingPodState
from tests.state.objects import a_pod

KEY, PLUGIN = "default/p", "Doorman"


def _waiting(pods: WaitingPods, uid: str) -> None:
    info = PodInfo(a_pod("p", uid=uid))
    pods.add(WaitingPodState(info, "n0", 0, {PLUGIN: 10}, was_nominated=False))


def test_answer_for_an_earlier_pod_of_the_name_is_ignored() -> None:
    pods = WaitingPods()
    _waiting(pods, "earlier")
    (earlier,) = pods.handles()
    pods.remove(KEY)
    earlier.allow(PLUGIN)
    _waiting(pods, "later")
    earlier.allow(PLUGIN)
    earlier.reject(PLUGIN, "no")
    assert pods.answers == []
    (later,) = pods.handles()
    later.allow(PLUGIN)
    assert pods.answers == [(KEY, PLUGIN, None)]


@pytest.mark.parametrize(
    ("message", "recorded"),
    [("no", "no"), ("\ud800", "?"), (ValueError("full"), "full"), (["no"], "['no']")],
)
def test_any_reason_of_a_rejection_can_be_recorded(message: Any, recorded: str) -> None:
    pods = WaitingPods()
    _waiting(pods, "p")
    (handle,) = pods.handles()
    handle.reject(PLUGIN, message)
    (answer,) = pods.answers
    assert answer.message == recorded
    msgspec.json.encode(r.PermitRejected(KEY, "p", answer.plugin, answer.message))
