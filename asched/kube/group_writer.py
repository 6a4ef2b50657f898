"""Writes to PodGroups: their status, after a batch session or a gang decision."""

from __future__ import annotations

from typing import Any

import msgspec

from asched.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiClient
from asched.kube.write_outcomes import ObjectGone, PatchOutcome, patch
from asched.model.group_versions import (
    SCHEDULED,
    other_scheduled_conditions,
    scheduled_condition,
)
from asched.model.groups import CompositePodGroup, PodGroup
from asched.model.resources import GroupResource


class GroupRef(msgspec.Struct, frozen=True, gc=False):
    """A PodGroup with its UID: a later one of the same name has another."""

    resource: GroupResource
    namespace: str
    name: str
    uid: str
    served: str = ""
    """``group/version`` to use; empty for that of the resource."""

    @classmethod
    def of(cls, kind: str, key: str, uid: str, served: str = "") -> GroupRef:
        """From the name of its model type and ``namespace/name``."""
        namespace, _, name = key.partition("/")
        return cls(_RESOURCES[kind], namespace, name, uid, served)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def api_version(self) -> str:
        return self.served or self.resource.value.api_version

    @property
    def native(self) -> bool:
        """Whether it is a group of ``scheduling.k8s.io``."""
        return self.resource.type.__name__ in NATIVE_KINDS

    @property
    def path(self) -> str:
        plural = self.resource.plural
        return f"/apis/{self.api_version}/namespaces/{self.namespace}/{plural}/{self.name}"


class PodGroupConditionPatch(
    msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True, kw_only=True
):
    """A condition in the form of the API."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    transition_id: str = msgspec.field(default="", name="transitionID")
    last_transition_time: str = ""


class GroupStatus(msgspec.Struct, frozen=True, gc=False):
    """The status of a PodGroup: all of it for a custom resource, and the scheduler's own
    conditions for a group of ``scheduling.k8s.io``, which has neither counts nor a phase."""

    conditions: tuple[PodGroupConditionPatch, ...]
    phase: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    removed: tuple[str, ...] = ()
    """Types of conditions to remove; for groups of ``scheduling.k8s.io`` only."""

    def with_times(self, time: str) -> GroupStatus:
        """With a transition time in each condition."""
        replace = msgspec.structs.replace
        times = [each.last_transition_time or time for each in self.conditions]
        timed = zip(self.conditions, times, strict=True)
        conditions = tuple([replace(one, last_transition_time=at) for one, at in timed])
        return replace(self, conditions=conditions)


_RESOURCES = {
    resource.type.__name__: resource
    for resource in GroupResource
    if resource.kind in ("PodGroup", "CompositePodGroup")
}
NATIVE_KINDS = frozenset({PodGroup.__name__, CompositePodGroup.__name__})
"""The model types of the groups of ``scheduling.k8s.io``."""
_encode = msgspec.json.Encoder().encode


class GroupWriter:
    """Patches the status of PodGroups."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def write_status(self, group: GroupRef, status: GroupStatus) -> PatchOutcome:
        """Merge the status into the PodGroup, with its UID as the precondition.

        kube-batch's definition has no status subresource, and a patch of it returns 404. Then the
        PodGroup itself is patched. Kubernetes' own PodGroup has the subresource, and merges
        conditions by type in a strategic merge patch, as in kube-scheduler.
        """
        written: Any = status
        if group.native:
            conditions = [_native_condition(group, each) for each in status.conditions]
            removed = [_written(group, each) for each in status.removed]
            if any(each.type == SCHEDULED for each in status.conditions):
                removed += other_scheduled_conditions(*_kind_and_version(group))
            deletions = [{"$patch": "delete", "type": each} for each in removed]
            written = {"conditions": conditions + deletions}
        body = _encode({"metadata": {"uid": group.uid}, "status": written})
        form = STRATEGIC_MERGE_PATCH if group.native else MERGE_PATCH
        outcome = await self._patch(f"{group.path}/status", body, form)
        if isinstance(outcome, ObjectGone) and not group.native:
            return await self._patch(group.path, body, form)
        return outcome

    async def _patch(self, path: str, body: bytes, form: str) -> PatchOutcome:
        return await patch(self._client, path, body, form, gone="the PodGroup is gone")


def _written(group: GroupRef, condition_type: str) -> str:
    """The name of the condition in the served version."""
    if condition_type != SCHEDULED:
        return condition_type
    return scheduled_condition(*_kind_and_version(group))


def _kind_and_version(group: GroupRef) -> tuple[str, str]:
    return group.resource.type.__name__, group.api_version.rpartition("/")[2]


def _native_condition(group: GroupRef, condition: PodGroupConditionPatch) -> dict[str, str]:
    """The form of Kubernetes' own groups: no transition id, always a message."""
    always = ("status", "reason", "message")
    written = {field: getattr(condition, field) for field in always}
    written["type"] = _written(group, condition.type)
    if condition.last_transition_time:
        written["lastTransitionTime"] = condition.last_transition_time
    return written
