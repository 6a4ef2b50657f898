"""From a request for resources to the bytes of its answer: every verb but watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import yaml

from asched.apiserver import apply, binding, protobuf
from asched.apiserver.api import UpdateFunc, DeleteOptions, ObjectApi
from asched.apiserver.errors import (
    StatusError,
    bad_request,
    method_not_allowed,
    unsupported_media_type,
    unsupported_route_media_type,
)
from asched.apiserver.listing import ListOptions
from asched.apiserver.patches import json_patch, merge_patch, strategic_merge
from asched.apiserver.rendering import PartialMetadataSerializer, Serializer, TableSerializer, ObjectSerializer
from asched.apiserver.requests import RequestInfo
from asched.apiserver.selectors import Predicate, both, field_selector, label_selector
from asched.apiserver.shapes import check_request
from asched.apiserver.store import Object, StoredObject, encode
from asched.apiserver.strictness import check_fields, json_error, summarized

_decode = msgspec.json.Decoder().decode

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
_CUSTOM_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)
_YAML_TYPES = ("application/yaml", APPLY_PATCH)

_BOUND = encode(
    {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
)


class Response(NamedTuple):
    """Status code and JSON body."""

    code: int
    body: bytes
    warnings: tuple[str, ...] = ()


class Request(NamedTuple):
    """A request for resources with its body and the headers that matter."""

    info: RequestInfo
    body: bytes
    content_type: str
    accept: str


def selection_predicate(info: RequestInfo) -> Predicate | None:
    """The selectors of a list, watch or deletecollection. Raises StatusError 400."""
    fields = info.query.get("fieldSelector", "")
    if info.name:
        fields = f"metadata.name={info.name},{fields}"
    labels = info.query.get("labelSelector", "")
    return both(
        label_selector(labels) if labels else None,
        field_selector(info.resource, fields) if fields else None,
    )


def list_options(info: RequestInfo) -> ListOptions:
    query = info.query
    limit = query.get("limit", "0")
    if not limit.isdecimal():
        raise bad_request(f'limit: Invalid value: "{limit}"')
    return ListOptions(
        info.namespace,
        selection_predicate(info),
        int(limit),
        query.get("continue", ""),
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
    )


def negotiate_serializer(api: ObjectApi, info: RequestInfo, accept: str) -> Serializer:
    """The first form in the Accept header that the server can write."""
    if ";as=" in accept:
        for choice in accept.split(","):
            if "g=meta.k8s.io" not in choice or "v=v1beta1" in choice:
                continue
            if "as=Table" in choice:
                whole = info.query.get("includeObject", "Metadata")
                return TableSerializer(info.resource, api, whole)
            if "as=PartialObjectMetadata" in choice:
                return PartialMetadataSerializer()
    return ObjectSerializer(info.resource, api.view(info.resource))


def decode_body(request: Request) -> Any:
    """The body as JSON values. Raises StatusError 400 as the server's decoder words it."""
    body = request.body
    if request.content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(body)
    try:
        return _decode(body)
    except RecursionError as error:
        raise bad_request("json: exceeded max depth") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if request.content_type in _YAML_TYPES:
            return _decode_yaml(body)
        kind = request.info.resource.kind
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get "
            f"version/kind; json parse error: {json_error(body)} ({summarized(body)})"
        ) from error


def _decode_yaml(body: bytes) -> Any:
    try:
        # Through JSON, so that dates become the strings that JSON would have had.
        return _decode(msgspec.json.encode(yaml.safe_load(body)))
    except (yaml.YAMLError, TypeError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error


def answer(api: ObjectApi, request: Request) -> Response:
    """Do what the request asks and write the answer. Raises StatusError."""
    handler = _HANDLERS.get(request.info.verb)
    if handler is None:
        raise method_not_allowed()
    return handler(api, request)


def _one(api: ObjectApi, request: Request, code: int, stored: StoredObject) -> Response:
    rendering = negotiate_serializer(api, request.info, request.accept)
    return Response(code, rendering.one(stored))


def _get(api: ObjectApi, request: Request) -> Response:
    info = request.info
    return _one(api, request, 200, api.get(info.resource, info.namespace, info.name))


def _list(api: ObjectApi, request: Request) -> Response:
    page = api.list(request.info.resource, list_options(request.info))
    return Response(200, negotiate_serializer(api, request.info, request.accept).many(page))


def _create(api: ObjectApi, request: Request) -> Response:
    info = request.info
    obj = decode_body(request)
    if not isinstance(obj, dict):
        raise bad_request("the request body is not an object")
    if info.subresource == "binding":
        check_request("Binding", obj)
        name = info.name or (obj.get("metadata") or {}).get("name") or ""
        binding.bind(api, info.resource, info.namespace, name, obj)
        return Response(201, _BOUND)
    if info.subresource == "eviction":
        check_request("Eviction", obj)
        options = _options_from(obj.get("deleteOptions") or {}, info)
        binding.evict(api, info.resource, info.namespace, info.name, options)
        return Response(201, _BOUND)
    if info.name or info.subresource:
        raise method_not_allowed()
    warnings = check_fields(info.resource, obj, info.query.get("fieldValidation", ""))
    stored = api.create(info.resource, info.namespace, obj, dry_run=info.dry_run)
    return _one(api, request, 201, stored)._replace(warnings=warnings)


def _update(api: ObjectApi, request: Request) -> Response:
    info = request.info
    obj = decode_body(request)
    if not isinstance(obj, dict):
        raise bad_request("the request body is not an object")
    warnings = check_fields(info.resource, obj, info.query.get("fieldValidation", ""))
    stored = api.update(
        info.resource,
        info.namespace,
        info.name,
        lambda _: obj,
        subresource=info.subresource,
        unconditional=False,
        dry_run=info.dry_run,
    )
    return _one(api, request, 200, stored)._replace(warnings=warnings)


def _patch(api: ObjectApi, request: Request) -> Response:
    info = request.info
    content_type = request.content_type
    if info.resource.custom:
        if content_type not in _CUSTOM_PATCH_TYPES:
            raise unsupported_media_type(list(_CUSTOM_PATCH_TYPES))
    elif content_type not in _PATCH_TYPES:
        raise unsupported_route_media_type()
    if content_type == APPLY_PATCH:
        return _apply(api, request)
    patch = decode_body(request)
    stored = api.update(
        info.resource,
        info.namespace,
        info.name,
        _patched(content_type, patch),
        subresource=info.subresource,
        dry_run=info.dry_run,
    )
    return _one(api, request, 200, stored)


def _patched(content_type: str, patch: Any) -> UpdateFunc:
    if content_type == JSON_PATCH:
        return lambda current: _object(json_patch(current, patch))
    if not isinstance(patch, dict):
        raise bad_request("the patch is not an object")
    if content_type == MERGE_PATCH:
        return lambda current: _object(merge_patch(current, patch))
    return lambda current: _object(strategic_merge(current, patch))


def _object(value: Any) -> Object:
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        raise StatusError(422, "Invalid", "the patched object is not an object", details={})
    return value


def _apply(api: ObjectApi, request: Request) -> Response:
    info = request.info
    applied = decode_body(request)
    if not isinstance(applied, dict):
        raise bad_request("the request body is not an object")
    manager = info.query.get("fieldManager", "")
    warnings = check_fields(info.resource, applied, info.query.get("fieldValidation", ""))
    stored, created = apply.server_side(
        api, info, applied, apply.Manager(manager, info.flag("force"))
    )
    return _one(api, request, 201 if created else 200, stored)._replace(warnings=warnings)


def _options_from(body: Any, info: RequestInfo) -> DeleteOptions:
    """DeleteOptions from the body, or from the query as kubectl may send them."""
    body = check_request("DeleteOptions", body)
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is None and "gracePeriodSeconds" in info.query:
        grace = _integer(info.query["gracePeriodSeconds"])
    dry_run = info.dry_run or "All" in (body.get("dryRun") or ())
    return DeleteOptions(
        grace,
        preconditions.get("uid") or "",
        preconditions.get("resourceVersion") or "",
        body.get("propagationPolicy") or info.query.get("propagationPolicy", ""),
        dry_run,
    )


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f'gracePeriodSeconds: Invalid value: "{text}"') from error


def _delete_options(request: Request) -> DeleteOptions:
    return _options_from(decode_body(request) if request.body else {}, request.info)


def _delete(api: ObjectApi, request: Request) -> Response:
    info = request.info
    if info.subresource:
        raise method_not_allowed()
    options = _delete_options(request)
    stored, gone = api.delete(info.resource, info.namespace, info.name, options)
    if info.resource.returns_deleted or (info.resource.custom and not gone) or not gone:
        return _one(api, request, 200, stored)
    details: Object = {"name": info.name}
    if info.resource.group:
        details["group"] = info.resource.group
    details["kind"] = info.resource.plural
    details["uid"] = stored.obj["metadata"]["uid"]
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
    return Response(200, encode(status))


def _delete_collection(api: ObjectApi, request: Request) -> Response:
    info = request.info
    deleted = api.delete_collection(info.resource, list_options(info), _delete_options(request))
    items = [stored.obj for stored in deleted]
    body = {
        "kind": info.resource.kind_of_list,
        "apiVersion": info.resource.group_version,
        "metadata": {"resourceVersion": str(api.revisions.current)},
        "items": items,
    }
    return Response(200, encode(body))


_HANDLERS: dict[str, Callable[[ObjectApi, Request], Response]] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}
