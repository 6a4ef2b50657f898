"""Handlers of resource requests: every verb except watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from asched.apiserver import apply, protobuf, subresources
from asched.apiserver.api import DeleteOptions, ObjectApi, UpdateFunc
from asched.apiserver.dra import strategy
from asched.apiserver.errors import (
    Object,
    StatusError,
    bad_request,
    json_error,
    method_not_allowed,
    summarized,
    unsupported_media_type,
    unsupported_route_media_type,
    without_containers,
)
from asched.apiserver.listing import ListOptions
from asched.apiserver.patches import json_patch, merge_patch, strategic_merge
from asched.apiserver.requests import CONTAINER_SUBRESOURCES, RequestInfo
from asched.apiserver.schemas import check_fields, check_request
from asched.apiserver.selectors import Predicate, both, field_selector, label_selector
from asched.apiserver.serializers import (
    ObjectSerializer,
    PartialMetadataSerializer,
    Serializer,
    TableSerializer,
)
from asched.apiserver.storage import StoredObject, encode
from asched.config.yaml import YamlError, parse_documents

_decode = msgspec.json.Decoder().decode

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
_CUSTOM_PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)
_YAML_TYPES = ("application/yaml", APPLY_PATCH)


class Response(NamedTuple):
    """Status code, JSON body and warnings."""

    code: int
    body: bytes
    warnings: tuple[str, ...] = ()


class Request(NamedTuple):
    """A parsed request with its body and the headers used."""

    info: RequestInfo
    body: bytes
    content_type: str
    accept: str
    permits: Callable[[str, str, str], bool] = lambda verb, group, resource: True
    """Whether the user may use a verb on a group's resource; for checks of the content."""


def _success(code: int | None, details: Object | None = None) -> bytes:
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code is not None:
        status["code"] = code
    return encode(status)


_CREATED = Response(201, _success(201))


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


def _list_options(info: RequestInfo) -> ListOptions:
    query = info.query
    limit = query.get("limit", "0")
    if not limit.isdecimal():
        raise bad_request(f'limit: Invalid value: "{limit}"')
    return ListOptions(
        namespace=info.namespace,
        predicate=selection_predicate(info),
        limit=int(limit),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
    )


def negotiate_serializer(api: ObjectApi, info: RequestInfo, accept: str) -> Serializer:
    """The serializer of the first supported media type in the Accept header."""
    if ";as=" in accept:
        for media_type in accept.split(","):
            if "g=meta.k8s.io" not in media_type or "v=v1beta1" in media_type:
                continue
            if "as=Table" in media_type:
                include = info.query.get("includeObject", "Metadata")
                return TableSerializer(info.resource, api, include)
            if "as=PartialObjectMetadata" in media_type:
                return PartialMetadataSerializer()
    return ObjectSerializer(info.resource, info.resource.view)


def _decode_body(request: Request) -> Any:
    """The body as JSON values. Raises StatusError 400 with the message of Go's decoder."""
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
        documents = parse_documents(body.decode())
    except (YamlError, UnicodeDecodeError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error
    if len(documents) != 1:
        raise bad_request(f"error decoding YAML: {len(documents)} documents instead of one")
    for line, problem in documents[0].located(documents[0].problems):
        raise bad_request(f"error decoding YAML: line {line}: {problem}")
    return documents[0].value


def _decode_object(request: Request) -> Object:
    obj = _decode_body(request)
    if not isinstance(obj, dict):
        raise bad_request("the request body is not an object")
    return obj


def _check_fields(info: RequestInfo, obj: Object) -> tuple[str, ...]:
    return check_fields(info.resource, obj, info.query.get("fieldValidation", ""))


def handle(api: ObjectApi, request: Request) -> Response:
    """Execute the request and encode its response. Raises StatusError."""
    info = request.info
    handler = _HANDLERS.get(info.verb)
    if handler is None:
        raise method_not_allowed()
    if info.subresource in CONTAINER_SUBRESOURCES:
        api.get(info.resource, info.namespace, info.name)
        raise without_containers()
    return handler(api, request)


def _respond(
    api: ObjectApi,
    request: Request,
    stored: StoredObject,
    *,
    created: bool = False,
    warnings: tuple[str, ...] = (),
) -> Response:
    serializer = negotiate_serializer(api, request.info, request.accept)
    return Response(201 if created else 200, serializer.one(stored), warnings)


def _get(api: ObjectApi, request: Request) -> Response:
    info = request.info
    stored = api.get(info.resource, info.namespace, info.name)
    return _scale(stored) if info.subresource == "scale" else _respond(api, request, stored)


def _scale(stored: StoredObject) -> Response:
    return Response(200, encode(subresources.scale_of(stored.obj)))


def _resize(api: ObjectApi, request: Request, change: UpdateFunc) -> Response:
    """``change`` applies to the Scale of a workload."""
    info = request.info
    stored = api.update(
        info.resource,
        info.namespace,
        info.name,
        lambda current: subresources.scaled(current, change(subresources.scale_of(current))),
        dry_run=info.dry_run,
    )
    return _scale(stored)


def _list(api: ObjectApi, request: Request) -> Response:
    page = api.list(request.info.resource, _list_options(request.info))
    return Response(200, negotiate_serializer(api, request.info, request.accept).many(page))


def _create(api: ObjectApi, request: Request) -> Response:
    info = request.info
    obj = _decode_object(request)
    if info.subresource == "binding":
        check_request("Binding", obj)
        name = info.name or (obj.get("metadata") or {}).get("name") or ""
        subresources.bind(api, info.resource, info.namespace, name, obj)
        return _CREATED
    if info.subresource == "eviction":
        check_request("Eviction", obj)
        options = _options_from(obj.get("deleteOptions") or {}, info)
        subresources.evict(api, info.resource, info.namespace, info.name, options)
        return _CREATED
    if info.name or info.subresource:
        raise method_not_allowed()
    warnings = _check_fields(info, obj)
    stored = api.create(info.resource, info.namespace, obj, dry_run=info.dry_run)
    return _respond(api, request, stored, created=True, warnings=warnings)


def _update(api: ObjectApi, request: Request) -> Response:
    info = request.info
    obj = _decode_object(request)
    if info.subresource == "scale":
        return _resize(api, request, lambda _: obj)
    warnings = _check_fields(info, obj)
    stored = api.update(
        info.resource,
        info.namespace,
        info.name,
        _permitted(request, lambda _: obj),
        subresource=info.subresource,
        unconditional=False,
        dry_run=info.dry_run,
    )
    return _respond(api, request, stored, warnings=warnings)


def _patch(api: ObjectApi, request: Request) -> Response:
    info = request.info
    content_type = request.content_type
    if info.resource.custom:
        if content_type not in _CUSTOM_PATCH_TYPES:
            raise unsupported_media_type(_CUSTOM_PATCH_TYPES)
    elif content_type not in _PATCH_TYPES:
        raise unsupported_route_media_type()
    if content_type == APPLY_PATCH:
        return _apply(api, request)
    change = _patch_func(content_type, _decode_body(request))
    if info.subresource == "scale":
        return _resize(api, request, change)
    stored = api.update(
        info.resource,
        info.namespace,
        info.name,
        _permitted(request, change),
        subresource=info.subresource,
        dry_run=info.dry_run,
    )
    return _respond(api, request, stored)


def _permitted(request: Request, change: UpdateFunc) -> UpdateFunc:
    """``change``, which fails if the user may not make it."""
    info = request.info
    if info.subresource != "status" or info.resource.storage_key != strategy.CLAIMS:
        return change

    def permitted(current: Object) -> Object:
        new = change(current)
        may_bind = request.permits(info.verb, strategy.GROUP, strategy.BINDING)
        strategy.check_binding(new, current, info.verb, may_bind=may_bind)
        return new

    return permitted


def _patch_func(content_type: str, patch: Any) -> UpdateFunc:
    if content_type == JSON_PATCH:
        return lambda current: _patched_object(json_patch(current, patch))
    if not isinstance(patch, dict):
        raise bad_request("the patch is not an object")
    if content_type == MERGE_PATCH:
        return lambda current: _patched_object(merge_patch(current, patch))
    return lambda current: _patched_object(strategic_merge(current, patch))


def _patched_object(value: Any) -> Object:
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        raise StatusError(422, "Invalid", "the patched object is not an object", details={})
    return value


def _apply(api: ObjectApi, request: Request) -> Response:
    info = request.info
    config = _decode_object(request)
    warnings = _check_fields(info, config)
    stored, created = apply.server_side_apply(api, info, config)
    return _respond(api, request, stored, created=created, warnings=warnings)


def _options_from(body: Any, info: RequestInfo) -> DeleteOptions:
    """DeleteOptions from the body or the query; kubectl uses both."""
    body = check_request("DeleteOptions", body)
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    if grace is None and (text := info.query.get("gracePeriodSeconds")) is not None:
        try:
            grace = int(text)
        except ValueError as error:
            raise bad_request(f'gracePeriodSeconds: Invalid value: "{text}"') from error
    return DeleteOptions(
        grace_period_s=grace,
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        propagation=body.get("propagationPolicy") or info.query.get("propagationPolicy", ""),
        dry_run=info.dry_run or "All" in (body.get("dryRun") or ()),
    )


def _delete_options(request: Request) -> DeleteOptions:
    return _options_from(_decode_body(request) if request.body else {}, request.info)


def _delete(api: ObjectApi, request: Request) -> Response:
    info = request.info
    if info.subresource:
        raise method_not_allowed()
    stored, removed = api.delete(info.resource, info.namespace, info.name, _delete_options(request))
    if info.resource.returns_deleted or not removed:
        return _respond(api, request, stored)
    details: Object = {"name": info.name}
    if info.resource.group:
        details["group"] = info.resource.group
    details["kind"] = info.resource.plural
    details["uid"] = stored.obj["metadata"]["uid"]
    return Response(200, _success(None, details))


def _delete_collection(api: ObjectApi, request: Request) -> Response:
    info = request.info
    deleted = api.delete_collection(info.resource, _list_options(info), _delete_options(request))
    body = {
        "kind": info.resource.kind_of_list,
        "apiVersion": info.resource.group_version,
        "metadata": {"resourceVersion": str(api.revisions.current)},
        "items": [stored.obj for stored in deleted],
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
