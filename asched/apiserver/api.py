"""The verbs of the Kubernetes API on the in-memory store: what each request means.

Everything is synchronous: one request is one step, as one etcd transaction is. Objects that come
in (``obj``) become the store's property; objects that go out are shared and must not be changed.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from asched.apiserver import deletion
from asched.apiserver import resources as crds
from asched.apiserver.admission import admit_new, check_namespace, check_update
from asched.apiserver.defaults import apply_defaults, complete_status, drop_empty
from asched.apiserver.errors import (
    MODIFIED,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
)
from asched.apiserver.events import complete_core, to_core, to_events
from asched.apiserver.listing import ListOptions, ServedListPage, list_page
from asched.apiserver.resizing import resized
from asched.apiserver.resources import ResourceRegistry, ServedResource
from asched.apiserver.selectors import Predicate
from asched.apiserver.shapes import check_shape
from asched.apiserver.store import Object, RevisionCounter, Storage, StoredObject, View, encode
from asched.apiserver.validation import check_object, invalid_value, resource_group_for_errors
from asched.apiserver.watch import Watcher

HISTORY_LIMIT = 100_000
"""Changes a resource keeps for watches to resume from."""

_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_LENGTH = 5
_MAX_GENERATED_PREFIX = 58
_decode = msgspec.json.Decoder().decode

UpdateFunc = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a DELETE request asks for."""

    grace_period_s: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False


def deep_copy(obj: Object) -> Object:
    """A deep copy: what a caller keeps must not be what the store holds."""
    copied: Object = _decode(encode(obj))
    return copied


class ObjectApi:
    """Create, read, update, patch, delete and watch objects of every served resource.

    :param clock: seconds since the epoch; injected, so that tests and simulations own time.
    :param seed: fixes uids and generated names; None takes them from the system.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        history_limit: int = HISTORY_LIMIT,
    ) -> None:
        self.clock = clock
        self.registry = ResourceRegistry()
        self.revisions = RevisionCounter()
        self._history_limit = history_limit
        self._random = random.Random(seed)
        self._storages: dict[str, Storage] = {}
        self._second, self._second_text = -1, ""

    # --- reading -------------------------------------------------------------------------------

    def storage(self, resource: ServedResource) -> Storage:
        key = resource.storage_key
        found = self._storages.get(key)
        if found is None:
            found = self._storages[key] = Storage(resource, self.revisions, self._history_limit)
        return found

    def storages(self) -> list[Storage]:
        """Those that were ever used."""
        return list(self._storages.values())

    def find(self, storage_key: str, namespace: str, name: str) -> StoredObject | None:
        storage = self._storages.get(storage_key)
        return None if storage is None else storage.get(namespace, name)

    def all_of(self, storage_key: str) -> list[StoredObject]:
        storage = self._storages.get(storage_key)
        return [] if storage is None else storage.ordered()

    def get(self, resource: ServedResource, namespace: str, name: str) -> StoredObject:
        """Raises StatusError 404."""
        found = self.storage(resource).get(namespace, name)
        if found is None:
            raise not_found(resource.plural, resource.group, name)
        return found

    def list(self, resource: ServedResource, options: ListOptions) -> ServedListPage:
        """Raises StatusError 400, 410, 422 or 504 (see :func:`asched.apiserver.listing.list_page`)."""
        return list_page(self.storage(resource), self.revisions.current, options)

    def watcher(
        self, resource: ServedResource, namespace: str = "", predicate: Predicate | None = None
    ) -> Watcher:
        """A watch that has not begun; say where with one of its ``begin`` methods."""
        return Watcher(self.storage(resource), namespace=namespace, predicate=predicate)

    @staticmethod
    def view(resource: ServedResource) -> View | None:
        """How this resource shows the stored objects, where not as they are stored."""
        return to_events if resource.group == "events.k8s.io" else None

    # --- writing -------------------------------------------------------------------------------

    def now_text(self, offset_s: int = 0) -> str:
        """The time of the clock, whole seconds later, as the API writes times."""
        second = int(self.clock()) + offset_s
        if second != self._second:
            moment = datetime.fromtimestamp(second, tz=UTC)
            self._second, self._second_text = second, moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._second_text

    def _new_uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _generated_name(self, prefix: str) -> str:
        suffix = "".join(self._random.choices(_NAME_ALPHABET, k=_GENERATED_LENGTH))
        return prefix[:_MAX_GENERATED_PREFIX] + suffix

    def _typed(self, resource: ServedResource, obj: Object, namespace: str) -> Object:
        """The object under its own kind, in storage form, with metadata of its own."""
        if not isinstance(obj, dict):
            raise bad_request("the request body is not an object")
        version, kind = obj.get("apiVersion"), obj.get("kind")
        if version and version != resource.group_version:
            raise bad_request(
                f"the API version in the data ({version}) does not match the expected API version "
                f"({resource.group_version})"
            )
        if kind and kind != resource.kind:
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                f"{resource.kind}: expected kind {resource.kind}, got {kind}"
            )
        given = obj.get("metadata")
        metadata = dict(given) if isinstance(given, dict) else {}
        if given is not None and not isinstance(given, dict):
            raise bad_request("the object's metadata is not an object")
        drop_empty(metadata, ("labels", "annotations", "finalizers", "ownerReferences"))
        named = metadata.get("namespace")
        if resource.namespaced:
            if named and namespace and named != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
            metadata["namespace"] = namespace or named
        else:
            metadata.pop("namespace", None)
        typed = {"kind": resource.kind, "apiVersion": resource.group_version, **obj}
        typed["kind"], typed["apiVersion"] = resource.kind, resource.group_version
        typed["metadata"] = metadata
        if resource.storage_key == "events":
            typed = to_core(typed) if resource.group else complete_core(typed)
        check_shape(resource, typed)
        return typed

    def create(
        self, resource: ServedResource, namespace: str, obj: Object, *, dry_run: bool = False
    ) -> StoredObject:
        """Raises StatusError 400, 403, 404 (namespace), 409 or 422."""
        obj = self._typed(resource, obj, namespace)
        metadata = obj["metadata"]
        namespace = metadata.get("namespace") or ""
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._generated_name(metadata["generateName"])
        name = metadata.get("name") or ""
        check_namespace(self, resource, namespace, name)
        for field in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            metadata.pop(field, None)
        metadata["uid"] = self._new_uid()
        metadata["creationTimestamp"] = self.now_text()
        if resource.generation or resource.custom:
            metadata["generation"] = 1
        admit_new(self, resource, obj, metadata["creationTimestamp"])
        check_object(resource, obj)
        storage = self.storage(resource)
        if storage.get(namespace, name) is not None:
            raise already_exists(resource.plural, resource.group, name)
        key = storage.key_of(namespace, name)
        if dry_run:
            return StoredObject(key, obj, self.revisions.current)
        stored = storage.write(key, obj)
        if resource.plural == "customresourcedefinitions":
            crds.establish(self, stored.obj)
        return stored

    def update(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        change: UpdateFunc,
        *,
        subresource: str = "",
        unconditional: bool = True,
        dry_run: bool = False,
    ) -> StoredObject:
        """Replace an object by what ``change`` makes of it; a change to nothing writes nothing.

        ``change`` gets the object as this resource shows it. Where ``unconditional`` is false the
        result has to bear a resourceVersion on resources that demand one. Raises StatusError 404,
        409 or 422.
        """
        storage = self.storage(resource)
        old = self.get(resource, namespace, name)
        view = self.view(resource)
        changed = change(old.obj if view is None else view(old.obj))
        new = self._typed(resource, changed, namespace)
        self._check_preconditions(resource, old, new, unconditional)
        new = self._merged(resource, old.obj, new, subresource)
        if new == old.obj:
            return old
        if not subresource:
            check_update(resource.storage_key, new, old.obj)
        if subresource in ("", "resize"):
            check_object(resource, new)
        if dry_run:
            return StoredObject(old.key, new, old.rv)
        new["metadata"] = dict(new["metadata"])
        stored = storage.write(old.key, new)
        metadata = stored.obj["metadata"]
        if metadata.get("deletionTimestamp") and deletion.is_finished(resource, stored.obj):
            return storage.remove(old.key)
        return stored

    def _check_preconditions(
        self, resource: ServedResource, old: StoredObject, new: Object, unconditional: bool
    ) -> None:
        metadata, name = new["metadata"], old.obj["metadata"]["name"]
        named = metadata.get("name")
        if named and named != name:
            raise bad_request(
                f"the name of the object ({named}) does not match the name on the URL ({name})"
            )
        uid, old_uid = metadata.get("uid"), old.obj["metadata"]["uid"]
        if uid and uid != old_uid:
            raise uid_conflict(resource, old, uid)
        version = metadata.get("resourceVersion")
        if version in (None, "", "0"):
            if not unconditional and (resource.custom or not resource.unconditional_update):
                cause = invalid_value(
                    "metadata.resourceVersion", 0, "must be specified for an update"
                )
                raise invalid(resource.kind, resource.group, name, [cause])
        elif version != old.obj["metadata"]["resourceVersion"]:
            raise conflict(resource.plural, resource.group, name, MODIFIED)

    def _merged(
        self, resource: ServedResource, old: Object, new: Object, subresource: str
    ) -> Object:
        """Keep what this request may not change; count the generation."""
        metadata, old_metadata = dict(new["metadata"]), old["metadata"]
        for field in _SYSTEM_METADATA:
            if field in old_metadata:
                metadata[field] = old_metadata[field]
            else:
                metadata.pop(field, None)
        if subresource == "status":
            status = new.get("status")
            new = {**old, "metadata": old_metadata if resource.custom else metadata}
            if status is not None:
                new["status"] = status
            else:
                new.pop("status", None)
            complete_status(resource.storage_key, new)
            return new
        if subresource == "resize":
            new = {**old, "spec": resized(old["spec"], new.get("spec") or {})}
            metadata = dict(old_metadata)
        new = {**new, "metadata": metadata}
        if resource.status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        if _body(new) != _body(old):
            # The patched object may share parts with the stored one: default a copy.
            new = deep_copy(new)
            apply_defaults(resource.storage_key, new)
            changed = _body(new) != _body(old)
            if changed and (resource.generation or resource.custom):
                new["metadata"]["generation"] = old_metadata.get("generation", 0) + 1
        return new

    def delete(
        self, resource: ServedResource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[StoredObject, bool]:
        """Delete, gracefully where the resource does so.

        The answer is the object's last state and whether it is gone. Raises StatusError 404 or 409.
        """
        old = self.get(resource, namespace, name)
        metadata = old.obj["metadata"]
        if options.uid and options.uid != metadata["uid"]:
            raise conflict(
                resource.kind if not resource.group else resource.plural,
                resource.group,
                name,
                f"the UID in the precondition ({options.uid}) does not match the UID in record "
                f"({metadata['uid']}). The object might have been deleted and then recreated",
            )
        if options.resource_version and options.resource_version != metadata["resourceVersion"]:
            raise conflict(
                resource.kind if not resource.group else resource.plural,
                resource.group,
                name,
                f"the ResourceVersion in the precondition ({options.resource_version}) does not "
                f"match the ResourceVersion in record ({metadata['resourceVersion']}). The object "
                "might have been modified",
            )
        if options.dry_run:
            return old, True
        return deletion.delete(self, resource, old, options.grace_period_s, options.propagation)

    def delete_collection(
        self, resource: ServedResource, options: ListOptions, how: DeleteOptions
    ) -> Iterable[StoredObject]:
        """Delete everything that matches; the answer is each object's last state."""
        page = self.list(resource, options)
        deleted = []
        for stored in page.items:
            metadata = stored.obj["metadata"]
            namespace = metadata.get("namespace") or ""
            deleted.append(self.delete(resource, namespace, metadata["name"], how)[0])
        return deleted

    def expire_history(self) -> None:
        """Forget all watch history, as etcd's compaction does: older watches and pages get 410."""
        for storage in self._storages.values():
            storage.expire()


_SYSTEM_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "namespace",
    "name",
    "generateName",
)


def _body(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def uid_conflict(resource: ServedResource, old: StoredObject, uid: str) -> StatusError:
    """The storage layer's answer to a uid that is not the object's."""
    metadata = old.obj["metadata"]
    key = f"/registry/{resource.plural}/{old.key}"
    return conflict(
        resource.plural,
        resource.group,
        metadata["name"],
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object "
        f"meta: {metadata['uid']}",
    )


__all__ = ["DeleteOptions", "ObjectApi", "fresh", "resource_group_for_errors", "uid_conflict"]
