"""The pods and other objects of a manifest on a state, ready to be decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from asched.audit.lookup import AuditError
from asched.fit.admission import Admission, daemon_may_run, resource_of, uses_unknown_claims
from asched.fit.controllers import WORKLOAD_KINDS, PodSet, pod_set
from asched.fit.manifest import ManifestError, ManifestObject
from asched.framework.pod_groups import PodGroupKey, group_of
from asched.framework.runtime.strict import nearest
from asched.model.groups import CustomPodGroup, GroupSpec, PodGroup, Workload
from asched.model.meta import Object
from asched.model.node import Node
from asched.model.pod import Pod
from asched.model.resource_claims import ResourceClaim
from asched.model.resources import AnyObject
from asched.model.workloads import PriorityClass
from asched.state.cluster import ClusterState

MAX_PODS: Final = 10_000
"""Pods of a manifest in all."""
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_CLAIM_TEMPLATE: Final = "ResourceClaimTemplate"


class AdmittedPods(NamedTuple):
    """The pods of one object of the manifest."""

    title: str
    """Such as ``Deployment default/web``."""
    source: PodSet
    pods: tuple[Pod, ...]
    objects: tuple[AnyObject, ...]
    """Claims of volumes that are created with the pods."""


class AdmittedManifest(NamedTuple):
    """What a manifest creates."""

    objects: tuple[AnyObject, ...]
    workloads: tuple[AdmittedPods, ...]
    claim_templates: tuple[ResourceClaim, ...]
    waiting: tuple[str, ...]
    """Keys of pending pods of the state that belong to PodGroups of the manifest."""
    notes: tuple[str, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(pod for workload in self.workloads for pod in workload.pods)


class ManifestPods:
    """Admits the objects of a manifest on a state."""

    def __init__(self, state: ClusterState, objects: Sequence[ManifestObject]) -> None:
        self._state = state
        self._objects = objects
        self._notes: list[str] = []
        self._names: set[str] = set()
        """Keys of the pods so far."""
        names = list(state.profiles)
        only = names[0] if len(names) == 1 and _DEFAULT_SCHEDULER not in names else ""
        self._only_profile = only
        self._admission = Admission(state, only)
        self._templates: list[ResourceClaim] = []

    def admitted(self, copies: int | None = None) -> AdmittedManifest:
        """The manifest; ``copies`` replaces the number of pods of its only workload.

        Raises :class:`~asched.fit.manifest.ManifestError`, and AuditError for pods that no profile
        serves.
        """
        found = [*self._other_objects()]
        sets = self._pod_sets()
        if copies is not None and len(sets) != 1:
            what = ", ".join(each.origin.title for each in sets) or "none"
            raise AuditError(f"copies apply to a manifest with one workload; this one has {what}")
        if copies is not None and sets[0].nodes:
            raise AuditError(f"{sets[0].origin.title}: the nodes determine the number of its pods")
        workloads = []
        for each in sets:
            found += self._created_with(each)
            workloads.append(self._workload(each, each.count if copies is None else copies))
        waiting = tuple(self._waiting_members(found))
        if not any(workload.pods for workload in workloads) and not waiting:
            raise self._no_pods()
        pods = [pod for workload in workloads for pod in workload.pods]
        found += self._missing_groups(pods, found)
        return AdmittedManifest(
            tuple(found), tuple(workloads), tuple(self._templates), waiting, tuple(self._notes)
        )

    def further_copy(self, workload: AdmittedPods, index: int) -> AdmittedPods:
        """The workload with its pod number ``index`` only, from 0. Raises as :meth:`admitted`."""
        return self._workload(workload.source, index + 1, index)

    # -- objects --------------------------------------------------------------------------------

    def _other_objects(self) -> Iterable[AnyObject]:
        ignored: dict[str, None] = {}
        for each in sorted(self._objects, key=lambda one: one.kind != "PriorityClass"):
            if WORKLOAD_KINDS.get(each.kind) == each.api_version:
                continue
            resource = resource_of(each.kind, each.api_version)
            if (each.kind, each.api_version) == (_CLAIM_TEMPLATE, "resource.k8s.io/v1"):
                self._templates.append(self._admission.claim_template(each))
            elif resource is None:
                self._check_kind(each)
                ignored[each.title] = None
            else:
                item = self._admission.object(each)
                if self._is_new(item):
                    yield item
        if ignored:
            self._notes.append(f"scheduling does not read {', '.join(ignored)}")

    def _check_kind(self, each: ManifestObject) -> None:
        version = WORKLOAD_KINDS.get(each.kind)
        if version is not None:
            message = f"{each.kind} has apiVersion {each.api_version}; expected {version}"
            raise each.error(message, ("apiVersion",))
        guess = nearest(each.kind, WORKLOAD_KINDS)
        if guess is not None:
            message = f"unknown kind {each.kind}; did you mean {guess}?"
            raise each.error(message, ("kind",))

    def _is_new(self, item: AnyObject) -> bool:
        known = self._state.object_store.of_kind(type(item))
        if item.key in known:
            what = f"{type(item).__name__} {item.key}"
            self._notes.append(f"{what} exists; the manifest does not change it")
            return False
        return True

    def _created_with(self, each: PodSet) -> Iterable[AnyObject]:
        for raw in each.objects:
            item = self._admission.object(each.origin, raw)
            if item.key in self._state.object_store.of_kind(type(item)):
                continue  # its pods keep their nodes, and these are additional ones
            yield item

    def _missing_groups(
        self, pods: Sequence[Pod], declared: Sequence[Object]
    ) -> Iterable[AnyObject]:
        """PodGroups of Workloads in the manifest, which a controller would create."""
        templates = {
            f"{each.namespace}/{name}": (each, template)
            for each in declared
            if isinstance(each, Workload)
            for template in each.spec.pod_group_templates
            for name in (f"{each.name}-{template.name}", template.name)
        }
        known = {each.key for each in declared if isinstance(each, PodGroup)}
        known.update(self._state.objects(PodGroup))
        for group in dict.fromkeys(group_of(pod) for pod in pods):
            if group is None or not group.native or group.key in known:
                continue
            if group.key not in templates:
                self._notes.append(f"PodGroup {group.key} does not exist: its pods wait for it")
                continue
            workload, template = templates[group.key]
            yield self._group_of_template(group, template)
            self._notes.append(
                f"PodGroup {group.key} is created from template {template.name} of Workload"
                f" {workload.key}"
            )

    def _waiting_members(self, objects: Iterable[Object]) -> Iterable[str]:
        for each in objects:
            if isinstance(each, PodGroup | CustomPodGroup):
                members = self._state.groups.members(
                    PodGroupKey(each.key, isinstance(each, PodGroup))
                )
                yield from (key for key in members.statuses if not self._state.pods[key].node)

    def _no_pods(self) -> ManifestError:
        kinds = ", ".join(dict.fromkeys(each.title for each in self._objects))
        expected = ", ".join(WORKLOAD_KINDS)
        message = f"the manifest creates no pods: it has {kinds}; expected one of {expected}"
        return self._objects[0].error(message)

    # -- pods -----------------------------------------------------------------------------------

    def _pod_sets(self) -> list[PodSet]:
        nodes = self._state.objects(Node)
        found = [
            pod_set(each, nodes)
            for each in self._objects
            if WORKLOAD_KINDS.get(each.kind) == each.api_version
        ]
        for each in found:
            self._notes += each.notes
            if not each.count and not each.nodes:
                self._notes.append(f"{each.origin.title} asks for no pods")
        return found

    def _workload(self, each: PodSet, count: int, first: int = 0) -> AdmittedPods:
        if len(self._names) + count - first > MAX_PODS:
            message = f"the manifest creates more than {MAX_PODS} pods"
            raise each.origin.error(f"{each.origin.title}: {message}")
        pods: list[Pod] = []
        claims: list[AnyObject] = []
        nodes = self._state.objects(Node)
        for index in range(first, count):
            raw = each.pod(index)
            self._rename(each, raw["metadata"])
            for claim in each.claims(index):
                item = self._admission.object(each.origin, claim)
                if item.key not in self._state.object_store.of_kind(type(item)):
                    claims.append(item)
            pod = self._admission.pod(each.origin, raw)
            if each.nodes and not daemon_may_run(pod, nodes, each.nodes[index]):
                continue
            pods.append(pod)
            self._names.add(pod.key)
        if pods and first == 0:
            self._check(each, pods[0])
        return AdmittedPods(each.origin.title, each, tuple(pods), tuple(claims))

    def _rename(self, each: PodSet, metadata: dict[str, object]) -> None:
        """A name that no pod of the state has."""
        name = metadata["name"]
        key = f"{metadata['namespace']}/{name}"
        number = 0
        while key in self._state.pods or key in self._names:
            number += 1
            metadata["name"] = f"{name}-{number}"
            key = f"{metadata['namespace']}/{metadata['name']}"
        if number and each.single and f"{metadata['namespace']}/{name}" in self._state.pods:
            exists = f"pod {metadata['namespace']}/{name} exists"
            self._notes.append(f"{exists}; the answer is for another one of that form")

    def _check(self, each: PodSet, pod: Pod) -> None:
        """Raises AuditError if no profile decides the pod."""
        if self._only_profile and "schedulerName" not in (each.template.get("spec") or {}):
            self._notes.append(
                f"{each.origin.title} names no scheduler; {self._only_profile} decides"
            )
        unknown = uses_unknown_claims(pod, self._templates)
        if unknown:
            self._notes.append(
                f"{_CLAIM_TEMPLATE} {pod.namespace}/{unknown} is not in the manifest: the pods wait"
                " for its claims"
            )
        name, state = pod.spec.scheduler_name, self._state
        if name in state.profiles:
            return
        sessions = state.sessions.get(name)
        if sessions is not None:
            actions = ", ".join(sessions.spec.actions)
            message = (
                f"batch sessions of {name} (actions: {actions}) place these pods together with all"
                " pending ones; fit answers for profiles only, asched simulate runs sessions"
            )
            raise each.origin.error(message)
        guess = nearest(name, [*state.profiles]) or next(iter(state.profiles), "")
        hint = f"; did you mean {guess}?" if guess else "; the state has no profile"
        message = f"the pod names scheduler {name}, which has no profile at that time{hint}"
        raise each.origin.error(message)

    def _group_of_template(self, group: PodGroupKey, template: GroupSpec) -> PodGroup:
        """The PodGroup of a template, as a controller creates it and admission completes it."""
        namespace, _, name = group.key.partition("/")
        spec = msgspec.to_builtins(template)
        del spec["name"]
        found = self._state.objects(PriorityClass).get(template.priority_class_name)
        if found is not None:
            spec.setdefault("priority", found.value)
        raw = {
            "kind": PodGroup.__name__,
            "metadata": {"name": name, "namespace": namespace, "uid": f"fit-podgroup-{name}"},
            "spec": spec,
        }
        return msgspec.convert(raw, PodGroup)
