"""Lists: pages that are consistent with each other, resourceVersion rules, continue tokens."""

from __future__ import annotations

import base64
import binascii
import itertools
from dataclasses import dataclass

import msgspec

from asched.apiserver.errors import StatusError, bad_request, expired, invalid, too_large
from asched.apiserver.selectors import Predicate
from asched.apiserver.store import ObjectRange, Storage, StoredObject
from asched.apiserver.strictness import json_error
from asched.apiserver.validation import forbidden_value, invalid_value

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can "
    "start a new list without the continue parameter, or use the continue token in this response "
    "to retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)
_INCONSISTENT = -1
"""Revision in a continue token that accepts whatever exists now."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The query of a list request, decoded."""

    namespace: str = ""
    predicate: Predicate | None = None
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""


@dataclass(frozen=True, slots=True)
class ServedListPage:
    """One page of a list, with what its ListMeta says."""

    items: list[StoredObject]
    rv: int
    continue_token: str = ""
    remaining: int | None = None


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


def _mint(rv: int, start: str) -> str:
    token = msgspec.json.encode(_Token("meta.k8s.io/v1", rv, start))
    # Go writes the NUL that marks "just after this key" as an escape, and no base64 padding.
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def _parse(token: str) -> _Token:
    padded = token + "=" * (-len(token) % 4)
    try:
        raw = base64.urlsafe_b64decode(padded)
    except (binascii.Error, ValueError) as error:
        raise bad_request(
            "invalid continue token: continue key is not valid: illegal base64 data"
        ) from error
    try:
        return msgspec.json.decode(raw, type=_Token)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(
            f"invalid continue token: continue key is not valid: {json_error(raw)}"
        ) from error


def parse_revision(text: str) -> int:
    """A resourceVersion of a request; empty counts as 0.

    Raises StatusError 500 with the message of Go's strconv for anything but an unsigned number.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise StatusError(
            500,
            "",
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
            "invalid syntax",
        )
    return int(text)


def check_revision_match(options: ListOptions, kind: str) -> None:
    """Raises StatusError 422 for a combination that the list API forbids."""
    match, version = options.resource_version_match, options.resource_version
    causes = []
    if match:
        if options.continue_token:
            causes.append(
                forbidden_value(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                )
            )
        elif not version:
            causes.append(
                forbidden_value(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                )
            )
        elif match == "Exact" and version == "0":
            causes.append(
                forbidden_value(
                    "resourceVersionMatch",
                    'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
                )
            )
        elif match not in ("Exact", "NotOlderThan"):
            causes.append(
                invalid_value(
                    "resourceVersionMatch", match, 'supported values: "Exact", "NotOlderThan"'
                )
            )
    if causes:
        raise invalid("ListOptions", "meta.k8s.io", "", causes)


def list_page(storage: Storage, current_rv: int, options: ListOptions) -> ServedListPage:
    """Answer a list request.

    The first page with a limit fixes a revision; the continue token names it, and later pages
    show the objects of that revision. Raises StatusError 410 when it is no longer in the history,
    504 for a revision not reached yet, 400 for a token that is none.
    """
    check_revision_match(options, storage.resource.kind)
    if options.continue_token:
        return _later_page(storage, current_rv, options)
    requested = parse_revision(options.resource_version)
    if requested > current_rv:
        raise too_large(requested, current_rv)
    if options.resource_version_match == "Exact" or (requested and options.limit
                                                     and not options.resource_version_match):  # fmt: skip
        return _cut(storage.stretch(options.namespace, rv=requested), requested, options)
    # resourceVersion=0 means "whatever the watch cache holds": its revision is the last write's.
    rv = storage.last_rv if options.resource_version == "0" else current_rv
    unlimited = options.resource_version == "0"
    return _cut(storage.stretch(options.namespace), rv, options, unlimited=unlimited)


def _later_page(storage: Storage, current_rv: int, options: ListOptions) -> ServedListPage:
    token = _parse(options.continue_token)
    start = token.start.removeprefix("/")
    prefix = f"{options.namespace}/" if options.namespace else ""
    if token.rv == _INCONSISTENT:
        return _cut(storage.stretch(options.namespace, prefix + start), current_rv, options)
    try:
        rest = storage.stretch(options.namespace, prefix + start, token.rv)
    except StatusError as error:
        raise expired(_TOO_OLD, {"continue": _mint(_INCONSISTENT, start)}) from error
    return _cut(rest, token.rv, options)


def _cut(
    stretch: ObjectRange, rv: int, options: ListOptions, *, unlimited: bool = False
) -> ServedListPage:
    predicate, limit = options.predicate, 0 if unlimited else options.limit
    objects = stretch.objects
    if predicate is not None:
        objects = (stored for stored in objects if predicate(stored.obj))
    # No further than to know whether there is more: pages of a long list come one after the other.
    items = list(itertools.islice(objects, limit + 1 if limit else None))
    if not limit or len(items) <= limit:
        return ServedListPage(items, rv)
    items.pop()
    prefix = f"{options.namespace}/" if options.namespace else ""
    token = _mint(rv, f"/{items[-1].key.removeprefix(prefix)}\0")
    # With a selector the server cannot know what remains without looking, and does not say.
    remaining = stretch.number - limit if predicate is None else None
    return ServedListPage(items, rv, token, remaining)
