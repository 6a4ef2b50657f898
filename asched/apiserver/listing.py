"""List requests: consistent pages, resourceVersion rules and continue tokens."""

from __future__ import annotations

import base64
import binascii
import itertools
from dataclasses import dataclass

import msgspec

from asched.apiserver.errors import (
    StatusError,
    bad_request,
    expired,
    forbidden_value,
    invalid,
    invalid_value,
    json_error,
    too_large,
)
from asched.apiserver.selectors import Predicate
from asched.apiserver.storage import ObjectRange, Storage, StoredObject

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can "
    "start a new list without the continue parameter, or use the continue token in this response "
    "to retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)
_INCONSISTENT = -1
"""Revision in a continue token that selects the current objects."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The decoded query of a list request."""

    namespace: str = ""
    predicate: Predicate | None = None
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""


@dataclass(frozen=True, slots=True)
class ServedListPage:
    """One page of a list and the fields of its ListMeta."""

    items: list[StoredObject]
    rv: int
    continue_token: str = ""
    remaining: int | None = None


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


def _encode_token(rv: int, start: str) -> str:
    token = msgspec.json.encode(_Token("meta.k8s.io/v1", rv, start))
    # Like Go: unpadded base64.
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def _decode_token(token: str) -> _Token:
    prefix = "invalid continue token: continue key is not valid"
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"{prefix}: illegal base64 data") from error
    try:
        return msgspec.json.decode(raw, type=_Token)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"{prefix}: {json_error(raw)}") from error


def parse_revision(text: str) -> int:
    """The resourceVersion, 0 if empty. Raises StatusError 500 with the message of Go's strconv."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        message = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise StatusError(500, "", f"resourceVersion: {message}")
    return int(text)


def _check_revision_match(options: ListOptions) -> None:
    """Raises StatusError 422 for a combination that the list API forbids."""
    match, version = options.resource_version_match, options.resource_version
    field, detail = "resourceVersionMatch", ""
    if not match:
        return
    if options.continue_token:
        detail = f"{field} is forbidden when continue is provided"
    elif not version:
        detail = f"{field} is forbidden unless resourceVersion is provided"
    elif match == "Exact" and version == "0":
        detail = f'{field} "exact" is forbidden for resourceVersion "0"'
    if detail:
        raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_value(field, detail)])
    if match not in ("Exact", "NotOlderThan"):
        cause = invalid_value(field, match, 'supported values: "Exact", "NotOlderThan"')
        raise invalid("ListOptions", "meta.k8s.io", "", [cause])


def list_page(storage: Storage, current_rv: int, options: ListOptions) -> ServedListPage:
    """One page of a list request.

    A first page with a limit fixes a revision. Its continue token names that revision, and later
    pages show the objects as of then. Raises StatusError 410 if the revision is no longer in the
    history, 504 for a future revision, 400 for an invalid token.
    """
    _check_revision_match(options)
    if options.continue_token:
        return _next_page(storage, current_rv, options)
    version, match = options.resource_version, options.resource_version_match
    requested = parse_revision(version)
    if requested > current_rv:
        raise too_large(requested, current_rv)
    if match == "Exact" or (requested and options.limit and not match):
        return _page(storage.range(options.namespace, rv=requested), requested, options)
    # resourceVersion=0 reads the watch cache at the revision of its last write.
    cached = version == "0"
    rv = storage.last_rv if cached else current_rv
    return _page(storage.range(options.namespace), rv, options, unlimited=cached)


def _next_page(storage: Storage, current_rv: int, options: ListOptions) -> ServedListPage:
    token = _decode_token(options.continue_token)
    start = token.start.removeprefix("/")
    first_key = f"{options.namespace}/{start}" if options.namespace else start
    if token.rv == _INCONSISTENT:
        return _page(storage.range(options.namespace, first_key), current_rv, options)
    try:
        rest = storage.range(options.namespace, first_key, token.rv)
    except StatusError as error:
        raise expired(_TOO_OLD, {"continue": _encode_token(_INCONSISTENT, start)}) from error
    return _page(rest, token.rv, options)


def _page(
    found: ObjectRange, rv: int, options: ListOptions, *, unlimited: bool = False
) -> ServedListPage:
    predicate, limit = options.predicate, 0 if unlimited else options.limit
    objects = found.objects
    if predicate is not None:
        objects = (stored for stored in objects if predicate(stored.obj))
    # One more than the limit shows whether there is another page.
    items = list(itertools.islice(objects, limit + 1 if limit else None))
    if not limit or len(items) <= limit:
        return ServedListPage(items, rv)
    items.pop()
    prefix = f"{options.namespace}/" if options.namespace else ""
    token = _encode_token(rv, f"/{items[-1].key.removeprefix(prefix)}\0")
    # kube-apiserver omits the remaining count if there is a selector.
    remaining = found.total - limit if predicate is None else None
    return ServedListPage(items, rv, token, remaining)
