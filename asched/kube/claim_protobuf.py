"""Additions to a ResourceClaim in Kubernetes' protobuf format.

An update may not change the opaque parameters of a claim, which the API server compares byte by
byte. In JSON it returns them without their white space, and with other escapes. So a claim that a
client wrote in another notation cannot be updated in JSON. kube-scheduler uses protobuf.

Protobuf merges fields that are repeated, so an addition is appended to what was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from asched.kube.pod_writer import PodTarget

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\0"
_TYPE, _RAW = 1, 2
"""Fields of ``runtime.Unknown``, the envelope."""
_METADATA, _STATUS = 1, 3
_UID, _VERSION, _FINALIZERS = 5, 6, 14
_RESERVED_FOR = 2


class ProtobufClaim:
    """A ResourceClaim as the API server returned it in protobuf."""

    def __init__(self, body: bytes) -> None:
        """Raises msgspec.DecodeError."""
        try:
            if not body.startswith(_MAGIC):
                raise ValueError("no protobuf")
            envelope = dict(_fields(body[len(_MAGIC) :]))
            self._type, self._raw = envelope[_TYPE], envelope[_RAW]
            metadata = dict(_fields(dict(_fields(self._raw))[_METADATA]))
            self.uid, self.version = metadata[_UID].decode(), metadata[_VERSION].decode()
        except (ValueError, LookupError) as error:
            raise msgspec.DecodeError(f"cannot decode the claim as protobuf: {error}") from None

    def with_finalizer(self, finalizer: str) -> bytes:
        return self._with(_field(_METADATA, _field(_FINALIZERS, finalizer.encode())))

    def with_reservation(self, consumer: PodTarget) -> bytes:
        fields = {3: "pods", 4: consumer.name, 5: consumer.uid}
        entry = b"".join(_field(number, text.encode()) for number, text in fields.items())
        return self._with(_field(_STATUS, _field(_RESERVED_FOR, entry)))

    def _with(self, addition: bytes) -> bytes:
        return _MAGIC + _field(_TYPE, self._type) + _field(_RAW, self._raw + addition)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers and contents of the fields; a number as content is left out."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        size, position = _varint(message, position)
        if tag & 7:
            yield tag >> 3, message[position : position + size]
            position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    number = shift = 0
    while True:
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def _field(number: int, content: bytes) -> bytes:
    head = bytearray()
    for rest in (number << 3 | 2, len(content)):
        while rest >= 0x80:
            head.append(rest & 0x7F | 0x80)
            rest >>= 7
        head.append(rest)
    return bytes(head) + content
