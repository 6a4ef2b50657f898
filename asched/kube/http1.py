"""Answers of HTTP/1.1, taken out of the bytes of a connection (RFC 9112).

Only as much of the protocol as short requests to an API server need, and strict: an answer whose end
is in doubt (two lengths, a chunk size that is no number) is an error, after which nothing that the
connection brings can be believed.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD_LIMIT_BYTES = 64 * 1024
_END_OF_HEAD = b"\r\n\r\n"
_CHUNK_LINE_LIMIT_BYTES = 4096
_NO_LENGTH = -1
"""The body is as long as the connection lives."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    retry_after: str | None
    """The header ``Retry-After`` as it came."""
    reusable: bool
    """Whether the connection may serve another request."""


class MalformedHttpError(ValueError):
    """What came is no answer of HTTP/1.1, or one of ambiguous length."""


class _Head(NamedTuple):
    status: int
    length: int
    chunked: bool
    retry_after: str | None
    reusable: bool


class AnswerParser:
    """Takes one answer after the other out of what a connection brings."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._body = bytearray()
        """What has come of a chunked body."""

    def feed(self, data: bytes) -> HttpAnswer | None:
        """The answer that ``data`` completes, if it does. Raises MalformedHttpError, also for bytes
        that follow an answer: nobody asked for them."""
        buffer = self._buffer
        buffer += data
        if self._head is None:
            self._head = self._take_head()
            if self._head is None:
                return None
        body = self._chunked_body() if self._head.chunked else self._plain_body(self._head.length)
        if body is None:
            return None
        if buffer:
            raise MalformedHttpError("more than an answer")
        return self._finished(body)

    def end(self) -> HttpAnswer | None:
        """The connection ended: the answer whose end that is, None if it broke off."""
        head = self._head
        if head is None or head.chunked or head.length != _NO_LENGTH:
            return None
        body = bytes(self._buffer)
        self._buffer.clear()
        return self._finished(body)

    def _finished(self, body: bytes) -> HttpAnswer:
        head, self._head = self._head, None
        assert head is not None
        return HttpAnswer(head.status, body, head.retry_after, head.reusable)

    def _take_head(self) -> _Head | None:
        """The head of the final answer; interim ones (100, 103) are passed over."""
        buffer = self._buffer
        while True:
            end = buffer.find(_END_OF_HEAD)
            if end < 0:
                if len(buffer) > HEAD_LIMIT_BYTES:
                    raise MalformedHttpError("a head without end")
                return None
            head = _parse_head(bytes(buffer[:end]))
            del buffer[: end + len(_END_OF_HEAD)]
            if head.status == 101:
                raise MalformedHttpError("another protocol")
            if head.status >= 200:
                return head

    def _plain_body(self, length: int) -> bytes | None:
        buffer = self._buffer
        if length == _NO_LENGTH or len(buffer) < length:
            return None
        body = bytes(buffer[:length])
        del buffer[:length]
        return body

    def _chunked_body(self) -> bytes | None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", 0, _CHUNK_LINE_LIMIT_BYTES)
            if end < 0:
                if len(buffer) >= _CHUNK_LINE_LIMIT_BYTES:
                    raise MalformedHttpError("a chunk without size")
                return None
            size = _chunk_size(bytes(buffer[:end]))
            begin = end + 2
            if not size:
                return self._after_last_chunk(begin)
            if len(buffer) < begin + size + 2:
                return None
            if buffer[begin + size : begin + size + 2] != b"\r\n":
                raise MalformedHttpError("a chunk longer than it says")
            self._body += buffer[begin : begin + size]
            del buffer[: begin + size + 2]

    def _after_last_chunk(self, begin: int) -> bytes | None:
        """Pass over the trailers, up to the empty line."""
        buffer = self._buffer
        if buffer.startswith(b"\r\n", begin):
            end = begin + 2
        else:
            end = buffer.find(_END_OF_HEAD, begin)
            if end < 0:
                if len(buffer) > HEAD_LIMIT_BYTES:
                    raise MalformedHttpError("trailers without end")
                return None
            end += len(_END_OF_HEAD)
        del buffer[:end]
        body = bytes(self._body)
        self._body.clear()
        return body


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    # int() would also take "0x10", "1_0" and a sign.
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise MalformedHttpError("a chunk whose size is no number")
    return int(digits, 16)


def _parse_head(head: bytes) -> _Head:
    line, _, fields = head.partition(b"\r\n")
    version, _, rest = line.partition(b" ")
    code = rest.partition(b" ")[0]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not code.isdigit() or len(code) != 3:
        raise MalformedHttpError("not an answer of HTTP/1.1")
    status = int(code)
    fields = b"\r\n" + fields
    names = fields.lower()
    connection = _field(names, fields, b"connection").lower()
    reusable = version == b"HTTP/1.1" and b"close" not in connection
    length, chunked = _NO_LENGTH, False
    if status in (204, 304) or status < 200:
        length = 0
    elif b"\r\ntransfer-encoding:" in names:
        if _field(names, fields, b"transfer-encoding").lower() != b"chunked":
            raise MalformedHttpError("a transfer encoding other than chunked")
        # Where a length is given as well, somebody on the way may have believed it (RFC 9112, 6.3).
        chunked, reusable = True, reusable and b"\r\ncontent-length:" not in names
    elif digits := _field(names, fields, b"content-length"):
        if not digits.isdigit():
            raise MalformedHttpError("a length that is no number")
        length = int(digits)
    else:
        reusable = False
    retry_after = _field(names, fields, b"retry-after") if status >= 300 else b""
    return _Head(status, length, chunked, retry_after.decode("latin-1") or None, reusable)


def _field(names: bytes, fields: bytes, name: bytes) -> bytes:
    """The value of the one field called ``name``; empty if there is none."""
    mark = b"\r\n" + name + b":"
    begin = names.find(mark)
    if begin < 0:
        return b""
    if names.find(mark, begin + 1) >= 0:
        raise MalformedHttpError(f"more than one {name.decode()}")
    begin += len(mark)
    end = fields.find(b"\r\n", begin)
    return fields[begin : end if end >= 0 else None].strip()
