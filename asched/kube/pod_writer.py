"""Writes to pods: bind, set conditions, nominate, evict.

A binding with an unknown result is not treated as failed: the pod is read back first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec

from asched.kube.client import STRATEGIC_MERGE_PATCH, ApiClient, RequestOptions
from asched.kube.errors import ApiError, NoResponseError
from asched.kube.transport import always
from asched.kube.write_outcomes import (
    BindOutcome,
    BoundElsewhere,
    ObjectGone,
    OutcomeUnknown,
    PatchOutcome,
    WriteOutcome,
    WriteRejected,
    WriteSucceeded,
    is_gone,
    outcome_of,
    patch,
)
from asched.model.nesting import decode_any_depth
from asched.model.pod import DEFAULT_SCHEDULER_NAME, POD_SCHEDULED

Reason = Literal["Unschedulable", "SchedulerError"]
"""Reasons of ``PodScheduled=False``; the API server itself sets ``SchedulingGated``."""


class PodTarget(msgspec.Struct, frozen=True, gc=False):
    """One particular pod: a later one of the same name has another UID."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, key: str, uid: str) -> PodTarget:
        """From ``namespace/name`` as :attr:`asched.model.meta.Object.key` gives it."""
        namespace, _, name = key.partition("/")
        return cls(namespace, name, uid)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class _Name(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    namespace: str = ""
    uid: str = ""


class _Target(msgspec.Struct, frozen=True):
    name: str
    kind: str = "Node"


class _Binding(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _Name
    target: _Target
    api_version: str = "v1"
    kind: str = "Binding"


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _PodMeta(msgspec.Struct, frozen=True):
    uid: str = ""


class _PodState(msgspec.Struct, frozen=True):
    """The fields that show whether a pod is bound."""

    metadata: _PodMeta = _PodMeta()
    spec: _PodSpec = _PodSpec()


_URGENT_DELETE = RequestOptions(idempotent=True, urgent=True)
_encode = msgspec.json.Encoder().encode
_pod_state_decoder = msgspec.json.Decoder(_PodState)


class PodWriter:
    """Binds, patches and deletes pods."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @property
    def may_write(self) -> bool:
        """Whether a write would be sent now: False on a replica that does not lead."""
        return self._client.may_write

    async def bind(
        self, pod: PodTarget, node: str, should_retry: Callable[[], bool] = always
    ) -> BindOutcome:
        """Post the Binding, with the pod's UID as its precondition.

        After a conflict, a server error or no response the pod is read back, so binding it to the
        node that it is bound to already is a success. OutcomeUnknown: the pod is not bound, but the
        request may yet take effect. ``should_retry`` is called before each repetition.
        """
        binding = _Binding(_Name(pod.name, pod.namespace, pod.uid), _Target(node))
        try:
            await self._client.request(
                "POST",
                f"{pod.path}/binding",
                body=_encode(binding),
                options=RequestOptions(should_retry=should_retry, urgent=True),
            )
        except ApiError as error:
            if error.status == 404:
                return ObjectGone()
            if error.status != 409 and error.status < 500:
                return WriteRejected(error.message, error.status)
            found = await self.read_bind_result(pod, node, error.message, error.status)
            return _unless_pending(found) if error.may_take_effect else found
        except NoResponseError as error:
            if not error.sent:
                return WriteRejected(str(error))
            return _unless_pending(await self.read_bind_result(pod, node, str(error)))
        return WriteSucceeded()

    async def read_bind_result(
        self, pod: PodTarget, node: str, message: str, status: int = 0
    ) -> BindOutcome:
        """Read whether the pod is bound; WriteRejected with ``message`` and ``status`` if not."""
        try:
            body = await self._client.request("GET", pod.path)
            found = decode_any_depth(_pod_state_decoder, body)
        except ApiError as error:
            if error.status == 404:
                return ObjectGone()
            return OutcomeUnknown(f"{message}; then, reading the pod: {error.message}")
        except (NoResponseError, msgspec.DecodeError) as error:
            return OutcomeUnknown(f"{message}; then, reading the pod: {error}")
        if pod.uid and found.metadata.uid != pod.uid:
            return ObjectGone()
        if found.spec.node_name == node:
            return WriteSucceeded()
        if found.spec.node_name:
            return BoundElsewhere(found.spec.node_name)
        return WriteRejected(message, status)

    async def patch_unschedulable(
        self,
        pod: PodTarget,
        *,
        message: str,
        reason: Reason,
        last_transition: datetime | None,
        nominated_node: str | None = None,
    ) -> PatchOutcome:
        """Set the condition ``PodScheduled=False`` and, unless None, the nominated node.

        ``last_transition`` is when the condition became false; None keeps the time of a condition
        that is already false. An empty ``nominated_node`` clears the nomination.
        """
        condition: dict[str, Any] = {
            "type": POD_SCHEDULED,
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
        }
        if last_transition is not None:
            condition["lastTransitionTime"] = rfc3339(last_transition)
        nomination = {} if nominated_node is None else _nomination(nominated_node)
        return await self._patch(pod, status={"conditions": [condition], **nomination})

    async def nominate(self, pod: PodTarget, node: str) -> PatchOutcome:
        """Set ``status.nominatedNodeName``; an empty node clears it."""
        return await self._patch(pod, status=_nomination(node))

    async def evict(
        self, victim: PodTarget, *, now: datetime, scheduler_name: str = DEFAULT_SCHEDULER_NAME
    ) -> WriteOutcome:
        """Set DisruptionTarget on the victim, then delete it with its own grace period.

        The order is kube-scheduler's: a Job's pod failure policy reads the condition. If it cannot
        be set the pod is not deleted. A victim that is gone is a success.
        """
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{scheduler_name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": rfc3339(now),
            "lastProbeTime": None,
        }
        marked = await self._patch(victim, status={"conditions": [condition]})
        if isinstance(marked, ObjectGone):
            return WriteSucceeded()
        if not isinstance(marked, WriteSucceeded):
            return marked
        options = {
            "preconditions": {"uid": victim.uid},
            "apiVersion": "v1",
            "kind": "DeleteOptions",
        }
        body = _encode(options)
        try:
            # It is the second half of an eviction: the preemptor waits for it, and not for the
            # first halves of later ones.
            await self._client.request("DELETE", victim.path, body=body, options=_URGENT_DELETE)
        except (ApiError, NoResponseError) as error:
            return WriteSucceeded() if is_gone(error) else outcome_of(error)
        return WriteSucceeded()

    async def _patch(self, pod: PodTarget, status: dict[str, Any]) -> PatchOutcome:
        # The UID is the precondition: the API server rejects a patch that changes it.
        body = _encode({"metadata": {"uid": pod.uid}, "status": status})
        return await patch(self._client, f"{pod.path}/status", body, STRATEGIC_MERGE_PATCH)

    async def annotate(self, pod: PodTarget, annotations: Mapping[str, str]) -> PatchOutcome:
        """Set these annotations and keep the others."""
        body = _encode({"metadata": {"uid": pod.uid, "annotations": annotations}})
        return await patch(self._client, pod.path, body, STRATEGIC_MERGE_PATCH)


def _nomination(node: str) -> dict[str, Any]:
    """In a merge patch null removes a field."""
    return {"nominatedNodeName": node or None}


def _unless_pending(found: BindOutcome) -> BindOutcome:
    """A Binding without a definite response may still take effect on an unbound pod."""
    return OutcomeUnknown(found.message) if isinstance(found, WriteRejected) else found


def rfc3339(moment: datetime) -> str:
    """``metav1.Time``: whole seconds, UTC."""
    return _whole_second(int(moment.timestamp()))


@lru_cache(maxsize=4)
def _whole_second(second: int) -> str:
    """Cached, because many victims are evicted in the same second."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
