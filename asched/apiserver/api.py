"""The verbs of the Kubernetes API on in-memory storage.

All methods are synchronous; one request is one step, like one etcd transaction. The storage takes
ownership of objects passed in (``obj``). Objects returned are shared and must not be changed.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from asched.apiserver import deletion, workload_api
from asched.apiserver.admission import admit_new, check_namespace, check_update
from asched.apiserver.defaults import apply_defaults, complete_status, drop_empty
from asched.apiserver.dra import strategy
from asched.apiserver.errors import (
    MODIFIED,
    Object,
    already_exists,
    bad_request,
    conflict,
    invalid,
    invalid_value,
    not_found,
    uid_conflict,
    undecodable,
)
from asched.apiserver.listing import ListOptions, ServedListPage, list_page
from asched.apiserver.resources import (
    ResourceRegistry,
    ServedResource,
    serve_definition,
    to_core_event,
)
from asched.apiserver.schemas import check_types
from asched.apiserver.selectors import Predicate
from asched.apiserver.storage import (
    RevisionCounter,
    Storage,
    StoredObject,
    Watcher,
    deep_copy,
)
from asched.apiserver.subresources import resized
from asched.apiserver.validation import check_object

_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_LENGTH = 5
_MAX_GENERATED_PREFIX = 58
_SYSTEM_METADATA = (
    "uid creationTimestamp deletionTimestamp deletionGracePeriodSeconds generation resourceVersion "
    "namespace name generateName"
)

UpdateFunc = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a DELETE request."""

    grace_period_s: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False


class ObjectApi:
    """Create, read, update, delete and watch objects of every served resource.

    :param clock: seconds since the epoch.
    :param seed: seed of uids and generated names; None uses the system's entropy.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
    ) -> None:
        self.clock = clock
        self.registry = ResourceRegistry()
        self.revisions = RevisionCounter()
        self._random = random.Random(seed)
        self.storages: dict[str, Storage] = {}
        """The storages in use by key."""
        self._second, self._second_text = -1, ""

    def storage(self, resource: ServedResource) -> Storage:
        key = resource.storage_key
        found = self.storages.get(key)
        if found is None:
            found = self.storages[key] = Storage(resource, self.revisions)
        return found

    def find(self, storage_key: str, namespace: str, name: str) -> StoredObject | None:
        storage = self.storages.get(storage_key)
        return None if storage is None else storage.get(namespace, name)

    def all_of(self, storage_key: str) -> list[StoredObject]:
        storage = self.storages.get(storage_key)
        return [] if storage is None else storage.ordered()

    def get(self, resource: ServedResource, namespace: str, name: str) -> StoredObject:
        """Raises StatusError 404."""
        found = self.storage(resource).get(namespace, name)
        if found is None:
            raise not_found(resource.plural, resource.group, name)
        return found

    def list(self, resource: ServedResource, options: ListOptions) -> ServedListPage:
        """Raises StatusError 400, 410, 422 or 504 (:func:`asched.apiserver.listing.list_page`)."""
        return list_page(self.storage(resource), self.revisions.current, options)

    def watcher(
        self, resource: ServedResource, namespace: str = "", predicate: Predicate | None = None
    ) -> Watcher:
        """A watch that starts with one of its ``begin`` methods."""
        return Watcher(self.storage(resource), namespace=namespace, predicate=predicate)

    def now_text(self, offset_s: int = 0) -> str:
        """The clock's time plus ``offset_s`` in the format of the API."""
        second = int(self.clock()) + offset_s
        if second != self._second:
            moment = datetime.fromtimestamp(second, tz=UTC)
            self._second, self._second_text = second, moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._second_text

    def _typed(self, resource: ServedResource, obj: Object, namespace: str) -> Object:
        """The object in storage form, with its kind and its own metadata dictionary."""
        if not isinstance(obj, dict):
            raise bad_request("the request body is not an object")
        version, kind = obj.get("apiVersion"), obj.get("kind")
        if version and version != resource.group_version:
            raise bad_request(
                f"the API version in the data ({version}) does not match the expected API version "
                f"({resource.group_version})"
            )
        if kind and kind != resource.kind:
            problem = f"expected kind {resource.kind}, got {kind}"
            raise undecodable(resource.kind, resource.version, problem)
        given = obj.get("metadata")
        if given is not None and not isinstance(given, dict):
            raise bad_request("the object's metadata is not an object")
        metadata = dict(given or {})
        drop_empty(metadata, "labels", "annotations", "finalizers", "ownerReferences")
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
            typed = to_core_event(typed)
        typed = workload_api.to_stored(resource, typed)
        check_types(resource, typed)
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
            suffix = "".join(self._random.choices(_NAME_ALPHABET, k=_GENERATED_LENGTH))
            metadata["name"] = metadata["generateName"][:_MAX_GENERATED_PREFIX] + suffix
        name = metadata.get("name") or ""
        check_namespace(self, resource, namespace, name)
        for field in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            metadata.pop(field, None)
        metadata["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.now_text()
        if resource.generation:
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
            serve_definition(self, stored.obj)
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
        """Replace an object by ``change`` of it, if that differs. ``unconditional=False`` requires
        a resourceVersion where the resource demands one. Raises StatusError 404, 409 or 422."""
        storage = self.storage(resource)
        old = self.get(resource, namespace, name)
        changed = change(old.obj if resource.view is None else resource.view(old.obj))
        new = self._typed(resource, changed, namespace)
        _check_preconditions(resource, old, new, unconditional)
        new = _merge_update(resource, old.obj, new, subresource)
        if new == old.obj:
            return old
        if not subresource:
            check_update(resource.storage_key, new, old.obj)
            strategy.check_update(resource, new, old.obj)
            workload_api.check_update(resource, new, old.obj)
            strategy.complete_update(resource, new, self.now_text())
        elif subresource == "status":
            new = strategy.updated_status(self, resource, new, old.obj)
            workload_api.check_status(resource, new)
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

    def delete(
        self, resource: ServedResource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[StoredObject, bool]:
        """The last state and whether the object was removed. Raises StatusError 404 or 409."""
        old = self.get(resource, namespace, name)
        metadata = old.obj["metadata"]
        problem = ""
        if options.uid and options.uid != metadata["uid"]:
            problem = (
                f"the UID in the precondition ({options.uid}) does not match the UID in record "
                f"({metadata['uid']}). The object might have been deleted and then recreated"
            )
        elif options.resource_version and options.resource_version != metadata["resourceVersion"]:
            problem = (
                f"the ResourceVersion in the precondition ({options.resource_version}) does not "
                f"match the ResourceVersion in record ({metadata['resourceVersion']}). The object "
                "might have been modified"
            )
        if problem:
            kind = resource.plural if resource.group else resource.kind
            raise conflict(kind, resource.group, name, problem)
        if options.dry_run:
            return old, True
        return deletion.delete(self, resource, old, options.grace_period_s, options.propagation)

    def delete_collection(
        self, resource: ServedResource, options: ListOptions, how: DeleteOptions
    ) -> Iterable[StoredObject]:
        """Delete all matching objects. Returns the last state of each."""
        deleted = []
        for stored in self.list(resource, options).items:
            metadata = stored.obj["metadata"]
            namespace = metadata.get("namespace") or ""
            deleted.append(self.delete(resource, namespace, metadata["name"], how)[0])
        return deleted

    def expire_history(self) -> None:
        """Drop all watch history, as an etcd compaction does: older watches and pages get 410."""
        for storage in self.storages.values():
            storage.expire()


def _check_preconditions(
    resource: ServedResource, old: StoredObject, new: Object, unconditional: bool
) -> None:
    metadata, old_metadata = new["metadata"], old.obj["metadata"]
    name, given_name, uid = old_metadata["name"], metadata.get("name"), metadata.get("uid")
    if given_name and given_name != name:
        raise bad_request(
            f"the name of the object ({given_name}) does not match the name on the URL ({name})"
        )
    if uid and uid != old_metadata["uid"]:
        raise uid_conflict(resource.plural, old.key, old_metadata, uid, resource.group)
    version = metadata.get("resourceVersion")
    if version in (None, "", "0"):
        if not unconditional and not resource.unconditional_update:
            cause = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource.kind, resource.group, name, [cause])
    elif version != old_metadata["resourceVersion"]:
        raise conflict(resource.plural, resource.group, name, MODIFIED)


def _merge_update(resource: ServedResource, old: Object, new: Object, subresource: str) -> Object:
    """``new`` without changes that this request may not make; increments the generation."""
    metadata, old_metadata = dict(new["metadata"]), old["metadata"]
    _keep_fields(metadata, old_metadata, *_SYSTEM_METADATA.split())
    if subresource == "status":
        status = {} if new.get("status") is None else {"status": new["status"]}
        new = {**old, "metadata": old_metadata if resource.custom else metadata}
        _keep_fields(new, status, "status")
        complete_status(resource.storage_key, new)
        return new
    if subresource == "resize":
        new = {**old, "spec": resized(old["spec"], new.get("spec") or {})}
        metadata = dict(old_metadata)
    new = {**new, "metadata": metadata}
    if resource.status:
        _keep_fields(new, old, "status")
    if _body(new) != _body(old):
        # A patched object may share parts with the stored one: default a copy.
        new = deep_copy(new)
        apply_defaults(resource.storage_key, new)
        if resource.generation and _body(new) != _body(old):
            new["metadata"]["generation"] = old_metadata.get("generation", 0) + 1
    return new


def _keep_fields(new: Object, old: Object, *fields: str) -> None:
    """Give ``new`` the ``fields`` of ``old``, also where they are absent."""
    for field in fields:
        if field in old:
            new[field] = old[field]
        else:
            new.pop(field, None)


def _body(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
