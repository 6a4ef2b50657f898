"""What is done to pods: bind, say why not, nominate, evict.

What the API server may well answer comes back as a value. A request of unknown fate is never taken
for failed: the pod is read back first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec

from asched.kube.client import STRATEGIC_MERGE_PATCH, ApiClient
from asched.kube.errors import ApiError, NoResponseError
from asched.model.pod import DEFAULT_SCHEDULER_NAME, POD_SCHEDULED

Reason = Literal["Unschedulable", "SchedulerError"]
"""Why a pod is not scheduled. ``SchedulingGated`` is set by the API server itself."""


class PodRef(msgspec.Struct, frozen=True, gc=False):
    """One particular pod: a later one of the same name has another UID."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, key: str, uid: str) -> PodRef:
        """From ``namespace/name`` as :attr:`asched.model.meta.Object.key` gives it."""
        namespace, _, name = key.partition("/")
        return cls(namespace, name, uid)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class WriteSucceeded(msgspec.Struct, frozen=True, gc=False):
    """It is as asked for."""


class BoundElsewhere(msgspec.Struct, frozen=True, gc=False):
    """Somebody bound the pod to another node first."""

    node: str

    @property
    def message(self) -> str:
        return f"already bound to node {self.node}"


class PodGone(msgspec.Struct, frozen=True, gc=False):
    """The pod does not exist any more, or another one has its name."""

    message: str = "the pod is gone"


class WriteRejected(msgspec.Struct, frozen=True, gc=False):
    """Certainly not done; ``status`` is the HTTP status, 0 where the server was not reached."""

    message: str
    status: int = 0


class OutcomeUnknown(msgspec.Struct, frozen=True, gc=False):
    """Whether it was done could not be found out; the watch will tell."""

    message: str


BindOutcome = WriteSucceeded | BoundElsewhere | PodGone | WriteRejected | OutcomeUnknown
PatchOutcome = WriteSucceeded | PodGone | WriteRejected | OutcomeUnknown
EvictOutcome = WriteSucceeded | WriteRejected | OutcomeUnknown


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


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str | msgspec.UnsetType
    last_probe_time: None = None


class _Uid(msgspec.Struct, frozen=True):
    uid: str


class _StatusPatch(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    conditions: tuple[_Condition, ...] = ()
    nominated_node_name: str | msgspec.UnsetType | None = msgspec.UNSET


class _Annotated(msgspec.Struct, frozen=True):
    uid: str
    annotations: Mapping[str, str]


class _AnnotationPatch(msgspec.Struct, frozen=True):
    """The UID is the precondition here, too."""

    metadata: _Annotated


class _Patch(msgspec.Struct, frozen=True):
    """The UID in a patch is its precondition: the API server refuses to change one."""

    metadata: _Uid
    status: _StatusPatch


class _DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    preconditions: _Uid
    api_version: str = "v1"
    kind: str = "DeleteOptions"


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _PodMeta(msgspec.Struct, frozen=True):
    uid: str = ""


class _PodState(msgspec.Struct, frozen=True):
    """What tells whether a binding took place."""

    metadata: _PodMeta = _PodMeta()
    spec: _PodSpec = _PodSpec()


_encode = msgspec.json.Encoder().encode
_pod_state_decoder = msgspec.json.Decoder(_PodState)


class PodWriter:
    """Carries out effects on pods."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @property
    def may_write(self) -> bool:
        """Whether a request would be sent now: False on a replica that does not lead."""
        return self._client.may_write

    async def bind(
        self, pod: PodRef, node: str, wanted: Callable[[], bool] = lambda: True
    ) -> BindOutcome:
        """Post the Binding, with the pod's UID as its precondition.

        A conflict, a server error or no answer is read back before anything is concluded, so
        binding to the node it is bound to already is a success. A pod that is not bound though
        nobody answered, or only that it took too long, is Unknown. ``wanted`` is asked before a request
        that was put off is sent again.
        """
        binding = _Binding(_Name(pod.name, pod.namespace, pod.uid), _Target(node))
        try:
            await self._client.request(
                "POST", f"{pod.path}/binding", body=_encode(binding), wanted=wanted
            )
        except ApiError as error:
            if error.status == 404:
                return PodGone()
            if error.status != 409 and error.status < 500:
                return WriteRejected(error.message, error.status)
            found = await self._read_back(pod, node, error.message, error.status)
            return _not_yet(found) if error.may_be_done else found
        except NoResponseError as error:
            if not error.sent:
                return WriteRejected(str(error))
            return _not_yet(await self._read_back(pod, node, str(error), 0))
        return WriteSucceeded()

    async def fate(self, pod: PodRef, node: str, message: str) -> BindOutcome:
        """Whether a pod that somebody else was to bind is bound; ``message`` says what went wrong
        and is the outcome's own where it is not."""
        return await self._read_back(pod, node, message, 0)

    async def _read_back(self, pod: PodRef, node: str, message: str, status: int) -> BindOutcome:
        try:
            body = await self._client.request("GET", pod.path)
            found = _pod_state_decoder.decode(body)
        except ApiError as error:
            if error.status == 404:
                return PodGone()
            return OutcomeUnknown(f"{message}; then, reading the pod: {error.message}")
        except (NoResponseError, msgspec.DecodeError) as error:
            return OutcomeUnknown(f"{message}; then, reading the pod: {error}")
        if pod.uid and found.metadata.uid != pod.uid:
            return PodGone()
        if found.spec.node_name == node:
            return WriteSucceeded()
        if found.spec.node_name:
            return BoundElsewhere(found.spec.node_name)
        return WriteRejected(message, status)

    async def patch_unschedulable(
        self,
        pod: PodRef,
        *,
        message: str,
        reason: Reason,
        last_transition: datetime | None,
        nominated_node: str | None = None,
    ) -> PatchOutcome:
        """Set the condition ``PodScheduled=False`` and, unless None, the nominated node.

        ``last_transition`` is when the condition became false; None leaves the time that it has, for
        one that is false already. An empty ``nominated_node`` clears it.
        """
        since = msgspec.UNSET if last_transition is None else _rfc3339(last_transition)
        condition = _Condition(POD_SCHEDULED, "False", reason, message, since)
        return await self._patch(pod, _StatusPatch((condition,), _nomination(nominated_node)))

    async def nominate(self, pod: PodRef, node: str) -> PatchOutcome:
        """Set ``status.nominatedNodeName``; an empty node clears it."""
        return await self._patch(pod, _StatusPatch((), _nomination(node)))

    async def evict(
        self,
        victim: PodRef,
        *,
        now: datetime,
        scheduler_name: str = DEFAULT_SCHEDULER_NAME,
    ) -> EvictOutcome:
        """Mark the victim as preempted, then delete it with its own grace period.

        As kube-scheduler does: the condition comes first, because a Job's pod failure policy reads
        it; where it cannot be set the pod is not deleted. A victim that is gone is a success.
        """
        condition = _Condition(
            "DisruptionTarget",
            "True",
            "PreemptionByScheduler",
            f"{scheduler_name}: preempting to accommodate a higher priority pod",
            _rfc3339(now),
        )
        marked = await self._patch(victim, _StatusPatch((condition,)))
        if isinstance(marked, PodGone):
            return WriteSucceeded()
        if not isinstance(marked, WriteSucceeded):
            return marked
        options = _encode(_DeleteOptions(_Uid(victim.uid)))
        try:
            await self._client.request("DELETE", victim.path, body=options, idempotent=True)
        except ApiError as error:
            if error.status == 404 or error.concerns_uid:
                return WriteSucceeded()
            return _failed(error)
        except NoResponseError as error:
            return _no_answer(error)
        return WriteSucceeded()

    async def _patch(self, pod: PodRef, status: _StatusPatch) -> PatchOutcome:
        body = _encode(_Patch(_Uid(pod.uid), status))
        return await self._send_patch(f"{pod.path}/status", body)

    async def annotate(self, pod: PodRef, annotations: Mapping[str, str]) -> PatchOutcome:
        """Set these annotations, and leave the others as they are."""
        body = _encode(_AnnotationPatch(_Annotated(pod.uid, annotations)))
        return await self._send_patch(pod.path, body)

    async def _send_patch(self, path: str, body: bytes) -> PatchOutcome:
        try:
            await self._client.request(
                "PATCH",
                path,
                body=body,
                content_type=STRATEGIC_MERGE_PATCH,
                idempotent=True,
            )
        except ApiError as error:
            if error.status == 404 or error.concerns_uid:
                return PodGone()
            return _failed(error)
        except NoResponseError as error:
            return _no_answer(error)
        return WriteSucceeded()


def _nomination(node: str | None) -> str | msgspec.UnsetType | None:
    """In a merge patch null takes a field away and an absent one leaves it alone."""
    return msgspec.UNSET if node is None else (node or None)


def _not_yet(found: BindOutcome) -> BindOutcome:
    """A pod that is not bound though a Binding was sent and never answered for: it may yet be."""
    return OutcomeUnknown(found.message) if isinstance(found, WriteRejected) else found


def _failed(error: ApiError) -> WriteRejected | OutcomeUnknown:
    if error.status >= 500:
        return OutcomeUnknown(error.message)
    return WriteRejected(error.message, error.status)


def _no_answer(error: NoResponseError) -> WriteRejected | OutcomeUnknown:
    return OutcomeUnknown(str(error)) if error.sent else WriteRejected(str(error))


def _rfc3339(moment: datetime) -> str:
    """``metav1.Time``: whole seconds, UTC."""
    return _whole_second(int(moment.timestamp()))


@lru_cache(maxsize=4)
def _whole_second(second: int) -> str:
    """Kept, since many victims go in the same second."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
