"""The controller of ResourceClaims, as in kube-controller-manager (pkg/controller/resourceclaim).

It creates claims from templates, removes reservations of pods that are done, deallocates claims
without reservations, and deletes the claims of pods that are gone, as the garbage collector does.
"""

from __future__ import annotations

from typing import Any, Final

from asched.apiserver.api import DeleteOptions
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.dra.pod_claims import (
    PodClaimRef,
    claim_refs,
    is_done,
    is_reserved_for,
    owner_uid,
)
from asched.apiserver.dra.strategy import CLAIMS, TEMPLATES
from asched.apiserver.errors import Object, StatusError
from asched.apiserver.reconciler import ObjectKey, Reconciler
from asched.apiserver.storage import DELETED, StoreChange

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_PODS, _CLAIMS, _TEMPLATES = "pods", "resourceclaims", "resourceclaimtemplates"
_MAX_BASE_NAME = 57
_MAX_CONSUMERS = 256


class ResourceClaimController(Reconciler):
    """Generates, deallocates and deletes the claims of a cluster."""

    resources = (_PODS, _CLAIMS, _TEMPLATES)

    def __init__(self, cluster: EmbeddedCluster) -> None:
        super().__init__(cluster)
        self._owned: dict[str, set[str]] = {}
        """The keys of the claims that a pod controls, by its UID."""
        self._users: dict[str, set[str]] = {}
        """The keys of the pods that name a claim, by its key."""

    def attach(self) -> None:
        self._owned.clear()
        self._users.clear()
        for stored in self._cluster.stored(_CLAIMS):
            self._owned.setdefault(owner_uid(stored.obj), set()).add(stored.key)
        for stored in self._cluster.stored(_PODS):
            self._note_user(stored.obj, stored.key)
        super().attach()

    def _note_user(self, pod: Object, key: str, *, deleted: bool = False) -> None:
        for entry in pod["spec"].get("resourceClaims") or ():
            if entry.get("resourceClaimName"):
                claim = f"{pod['metadata']['namespace']}/{entry['resourceClaimName']}"
                users = self._users.setdefault(claim, set())
                if deleted:
                    users.discard(key)
                else:
                    users.add(key)

    def on_change(self, resource: str, change: StoreChange) -> None:
        if resource == _PODS:
            self._on_pod(change)
        elif resource == _CLAIMS:
            uid, key = owner_uid(change.new.obj), change.new.key
            if change.type != DELETED:
                self._owned.setdefault(uid, set()).add(key)
                self.enqueue(resource, key)
            else:
                self._owned.get(uid, set()).discard(key)
            self._enqueue_owner(change.new.obj)
            for user in sorted(self._users.get(key, ())):
                self.enqueue(_PODS, user)
        elif change.type != DELETED:
            self.enqueue(resource, change.new.key)

    def _on_pod(self, change: StoreChange) -> None:
        pod, deleted = change.new.obj, change.type == DELETED
        self._note_user(pod, change.new.key, deleted=deleted)
        if not deleted and pod["spec"].get("resourceClaims"):
            self.enqueue(_PODS, change.new.key)
        if deleted or is_done(pod):
            namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
            named = {f"{namespace}/{r.claim_name}" for r in claim_refs(pod) if r.claim_name}
            for key in sorted(named | self._owned.get(uid, set())):
                self.enqueue(_CLAIMS, key)
        if deleted:
            self._owned.pop(pod["metadata"]["uid"], None)

    def _enqueue_owner(self, claim: Object) -> None:
        """A claim that was deleted by mistake is generated again."""
        for owner in claim["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner.get("kind") == "Pod":
                self.enqueue(_PODS, f"{claim['metadata']['namespace']}/{owner['name']}")

    def sync(self, item: ObjectKey) -> None:
        if item.resource == _PODS:
            self._sync_pod(item)
        elif item.resource == _CLAIMS:
            self._sync_claim(item)
        else:
            self._sync_template(item)

    # -- pods -------------------------------------------------------------------------------------

    def _sync_template(self, item: ObjectKey) -> None:
        """Pods that were created before their template."""
        for stored in self._cluster.stored(_PODS):
            entries = stored.obj["spec"].get("resourceClaims") or ()
            named = any(e.get("resourceClaimTemplateName") == item.name for e in entries)
            if named and stored.obj["metadata"]["namespace"] == item.namespace:
                self.enqueue(_PODS, stored.key)

    def _sync_pod(self, item: ObjectKey) -> None:
        stored = self._api.find(_PODS, item.namespace, item.name)
        if stored is None or stored.obj["metadata"].get("deletionTimestamp"):
            return
        pod, generated = stored.obj, {}
        for ref in claim_refs(pod):
            name = self._generate(pod, ref)
            if name:
                generated[ref.entry["name"]] = name
        if generated:
            pod = self._set_generated(pod, generated)
        if pod["spec"].get("nodeName") and not is_done(pod):
            for ref in claim_refs(pod):
                if ref.claim_name:
                    self._reserve(pod, ref)

    def _generate(self, pod: Object, ref: PodClaimRef) -> str:
        """The name of the pod's claim, if it has to be noted in the status of the pod."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        if not ref.generated or ref.claim_name is None or is_done(pod):
            return ""
        if ref.claim_name:
            found = self._api.find(CLAIMS, namespace, ref.claim_name)
            if found is not None and owner_uid(found.obj) == uid:
                return ""
        for key in sorted(self._owned.get(uid, ())):
            owned = self._api.find(CLAIMS, *key.split("/"))
            metadata = {} if owned is None else owned.obj["metadata"]
            if (metadata.get("annotations") or {}).get(POD_CLAIM) == ref.entry["name"]:
                return str(metadata["name"])
        template = self._api.find(TEMPLATES, namespace, ref.entry["resourceClaimTemplateName"])
        if template is None:
            return ""  # tried again once there is one
        claim = _claim_from(template.obj.get("spec") or {}, pod["metadata"], ref.entry["name"])
        try:
            made = self._cluster.create(_CLAIMS, claim, namespace=namespace)
        except StatusError:
            return ""  # as a terminating namespace
        return str(made["metadata"]["name"])

    def _set_generated(self, pod: Object, generated: dict[str, str]) -> Object:
        def change(current: Object) -> Object:
            status = current["status"]
            known = {each["name"]: each for each in status.get("resourceClaimStatuses") or ()}
            for name, claim_name in generated.items():
                known[name] = {"name": name, "resourceClaimName": claim_name}
            return {**current, "status": {**status, "resourceClaimStatuses": [*known.values()]}}

        return self._update(_PODS, pod, change, "status")

    def _reserve(self, pod: Object, ref: PodClaimRef) -> None:
        """Reserve an allocated claim for a pod that was bound without a scheduler."""
        metadata = pod["metadata"]
        found = self._api.find(CLAIMS, metadata["namespace"], ref.claim_name or "")
        if found is None or (ref.generated and owner_uid(found.obj) != metadata["uid"]):
            return
        claim = found.obj
        status = claim.get("status") or {}
        consumers = status.get("reservedFor") or []
        usable = status.get("allocation") and not claim["metadata"].get("deletionTimestamp")
        if not usable or is_reserved_for(claim, metadata["uid"]):
            return
        if len(consumers) >= _MAX_CONSUMERS:
            return
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
        reserved = {**status, "reservedFor": [*consumers, consumer]}
        self._update(_CLAIMS, claim, lambda c: {**c, "status": reserved}, "status")

    # -- claims -----------------------------------------------------------------------------------

    def _sync_claim(self, item: ObjectKey) -> None:
        stored = self._api.find(CLAIMS, item.namespace, item.name)
        if stored is None:
            return
        claim, status = stored.obj, stored.obj.get("status") or {}
        consumers = status.get("reservedFor") or []
        remaining = [each for each in consumers if self._still_uses(item.namespace, each)]
        protected = FINALIZER in (claim["metadata"].get("finalizers") or ())
        deleting = bool(claim["metadata"].get("deletionTimestamp"))
        if len(remaining) < len(consumers):
            claim = self._set_consumers(claim, remaining, deallocate=not remaining and protected)
        elif protected and deleting and not remaining and status.get("allocation"):
            claim = self._set_consumers(claim, [], deallocate=True)
        unused = len(remaining) < len(consumers) or deleting
        allocated = (claim.get("status") or {}).get("allocation")
        if protected and unused and not remaining and not allocated:
            claim = self._remove_finalizer(claim)
        if not remaining:
            self._delete_unowned(claim)

    def _still_uses(self, namespace: str, consumer: Object) -> bool:
        if consumer.get("apiGroup") or consumer.get("resource") != "pods":
            return True
        stored = self._api.find(_PODS, namespace, consumer["name"])
        if stored is None or stored.obj["metadata"]["uid"] != consumer["uid"]:
            return False
        return not is_done(stored.obj)

    def _set_consumers(self, claim: Object, consumers: list[Any], *, deallocate: bool) -> Object:
        dropped = {"reservedFor"} | ({"allocation"} if deallocate else set())
        status = {k: v for k, v in (claim.get("status") or {}).items() if k not in dropped}
        if consumers:
            status["reservedFor"] = consumers
        return self._update(_CLAIMS, claim, lambda c: {**c, "status": status}, "status")

    def _remove_finalizer(self, claim: Object) -> Object:
        def change(current: Object) -> Object:
            metadata = dict(current["metadata"])
            kept = [each for each in metadata.get("finalizers") or () if each != FINALIZER]
            metadata["finalizers"] = kept
            return {**current, "metadata": metadata}

        return self._update(_CLAIMS, claim, change)

    def _delete_unowned(self, claim: Object) -> None:
        """Delete the claim of a pod that is done or gone."""
        metadata = claim["metadata"]
        uid = owner_uid(claim)
        if not uid or self._api.find(CLAIMS, metadata["namespace"], metadata["name"]) is None:
            return
        name = next(o["name"] for o in metadata["ownerReferences"] if o.get("uid") == uid)
        pod = self._api.find(_PODS, metadata["namespace"], name)
        used = pod is not None and pod.obj["metadata"]["uid"] == uid and not is_done(pod.obj)
        if used or metadata.get("deletionTimestamp"):
            return
        options = DeleteOptions(uid=metadata["uid"])
        resource = self._cluster.resource(_CLAIMS)
        self._api.delete(resource, metadata["namespace"], metadata["name"], options)

    def _update(self, resource: str, obj: Object, change: Any, subresource: str = "") -> Object:
        metadata = obj["metadata"]
        return self._api.update(
            self._cluster.resource(resource),
            metadata["namespace"],
            metadata["name"],
            change,
            subresource=subresource,
        ).obj


def _claim_from(template: Object, pod: Object, entry_name: str) -> Object:
    """The claim of a pod with this metadata."""
    given = template.get("metadata") or {}
    base = f"{pod['name']}-{entry_name}-"
    if len(base) > _MAX_BASE_NAME:
        # Both names are cut in proportion to their length.
        length = len(base)
        base = (
            f"{pod['name'][: len(pod['name']) * _MAX_BASE_NAME // length]}-"
            f"{entry_name[: len(entry_name) * _MAX_BASE_NAME // length]}"
        )
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    metadata: Object = {
        "generateName": base,
        "annotations": {**(given.get("annotations") or {}), POD_CLAIM: entry_name},
        "ownerReferences": [owner],
    }
    if given.get("labels"):
        metadata["labels"] = dict(given["labels"])
    return {"metadata": metadata, "spec": template.get("spec") or {}}
