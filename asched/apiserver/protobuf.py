"""Requests in Kubernetes' protobuf encoding: what ``kubectl create namespace`` and its kin send.

Only the kinds that kubectl's own generators and ``kubectl drain`` build are known; for others the
client gets 415. Field numbers are those of the ``generated.proto`` files of k8s.io/api.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from asched.apiserver.errors import bad_request, unsupported_media_type

Object = dict[str, Any]

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _TruncatedError(Exception):
    """The message ends before it should."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _TruncatedError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, integer or bytes) of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire, len(data))
        if at + size > len(data):
            raise _TruncatedError
        yield tag >> 3, data[at : at + size]
        at += size


def _bytes(value: Any) -> bytes:
    """A field that must hold bytes: text or a message. Raises where it holds a number."""
    if not isinstance(value, bytes):
        raise _TruncatedError
    return value


def _number(value: Any) -> int:
    """A field that must hold a number. Raises where it holds bytes."""
    if not isinstance(value, int):
        raise _TruncatedError
    return value


Reader = Callable[[Any], Any]
"""Makes a JSON value of a field; None for one that JSON leaves out."""


def _text(value: Any) -> str | None:
    return _bytes(value).decode() or None


def _integer(value: Any) -> int:
    number = _number(value)
    return number - (1 << 64) if number >> 63 else number


def _boolean(value: Any) -> bool | None:
    return bool(_number(value)) or None


def _int_or_text(value: Any) -> Any:
    parts = dict(_fields(_bytes(value)))
    return _bytes(parts.get(3, b"")).decode() if parts.get(1) == 1 else _integer(parts.get(2, 0))


def _base64(value: Any) -> str:
    return base64.b64encode(_bytes(value)).decode()


def _quantity(value: Any) -> str:
    return _bytes(dict(_fields(_bytes(value))).get(1, b"")).decode()


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    read: Reader
    repeated: bool = False
    keyed: bool = False
    """A map: an entry message with the key in field 1 and the value in field 2."""


Schema = dict[int, _Field]


def _message(schema: Schema) -> Reader:
    def read(data: Any) -> Object | None:
        found: Object = {}
        for number, value in _fields(_bytes(data)):
            field = schema.get(number)
            if field is None:
                continue
            if field.keyed:
                entry = dict(_fields(_bytes(value)))
                key = _bytes(entry.get(1, b"")).decode()
                found.setdefault(field.name, {})[key] = field.read(entry.get(2, b"")) or ""
            elif field.repeated:
                found.setdefault(field.name, []).append(field.read(value))
            else:
                made = field.read(value)
                if made is not None:
                    found[field.name] = made
        return found or None

    return read


def _texts(name: str) -> _Field:
    return _Field(name, _text, repeated=True)


def _text_map(name: str) -> _Field:
    return _Field(name, _text, keyed=True)


_META = _Field(
    "metadata",
    _message(
        {
            1: _Field("name", _text),
            2: _Field("generateName", _text),
            3: _Field("namespace", _text),
            5: _Field("uid", _text),
            6: _Field("resourceVersion", _text),
            11: _text_map("labels"),
            12: _text_map("annotations"),
            14: _texts("finalizers"),
        }
    ),
)
_REQUIREMENT: Schema = {1: _Field("key", _text), 2: _Field("operator", _text), 3: _texts("values")}
_SELECTOR: Schema = {
    1: _text_map("matchLabels"),
    2: _Field("matchExpressions", _message(_REQUIREMENT), repeated=True),
}
_DELETE_OPTIONS: Schema = {
    1: _Field("gracePeriodSeconds", _integer),
    2: _Field(
        "preconditions", _message({1: _Field("uid", _text), 2: _Field("resourceVersion", _text)})
    ),
    4: _Field("propagationPolicy", _text),
    5: _texts("dryRun"),
}
_PORT: Schema = {
    1: _Field("name", _text),
    2: _Field("protocol", _text),
    3: _Field("port", _integer),
    4: _Field("targetPort", _int_or_text),
}
_SERVICE_SPEC: Schema = {
    1: _Field("ports", _message(_PORT), repeated=True),
    2: _text_map("selector"),
    3: _Field("clusterIP", _text),
    4: _Field("type", _text),
}
_BUDGET_SPEC: Schema = {
    1: _Field("minAvailable", _int_or_text),
    2: _Field("selector", _message(_SELECTOR)),
    3: _Field("maxUnavailable", _int_or_text),
}
_REFERENCE: Schema = {
    1: _Field("kind", _text),
    2: _Field("namespace", _text),
    3: _Field("name", _text),
    4: _Field("uid", _text),
    5: _Field("apiVersion", _text),
}
_KINDS: dict[str, Schema] = {
    "Namespace": {1: _META},
    "ServiceAccount": {1: _META},
    "ConfigMap": {1: _META, 2: _text_map("data"), 3: _Field("binaryData", _base64, keyed=True)},
    "Secret": {
        1: _META,
        2: _Field("data", _base64, keyed=True),
        3: _Field("type", _text),
        4: _text_map("stringData"),
    },
    "ResourceQuota": {
        1: _META,
        2: _Field(
            "spec", _message({1: _Field("hard", _quantity, keyed=True), 2: _texts("scopes")})
        ),
    },
    "Service": {1: _META, 2: _Field("spec", _message(_SERVICE_SPEC))},
    "PriorityClass": {
        1: _META,
        2: _Field("value", _integer),
        3: _Field("globalDefault", _boolean),
        4: _Field("description", _text),
        5: _Field("preemptionPolicy", _text),
    },
    "PodDisruptionBudget": {1: _META, 2: _Field("spec", _message(_BUDGET_SPEC))},
    "Binding": {1: _META, 2: _Field("target", _message(_REFERENCE))},
    "Eviction": {1: _META, 2: _Field("deleteOptions", _message(_DELETE_OPTIONS))},
    "DeleteOptions": _DELETE_OPTIONS,
}
_ACCEPTED = ["application/json", "application/yaml"]


def decode(body: bytes) -> Object:
    """The object in a protobuf request body.

    Raises StatusError 400 for bytes that are no such message, 415 for a kind that is not known.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(_bytes(envelope.get(1, b""))))
        kind = _bytes(type_meta.get(2, b"")).decode()
        version = _bytes(type_meta.get(1, b"")).decode()
        schema = _KINDS.get(kind)
        if schema is None:
            raise unsupported_media_type(_ACCEPTED)
        content = _message(schema)(envelope.get(2, b"")) or {}
    except (_TruncatedError, UnicodeDecodeError) as error:
        raise bad_request("unable to decode the protobuf message: unexpected EOF") from error
    return {"kind": kind, "apiVersion": version, **content}
