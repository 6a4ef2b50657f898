"""Parses HTTP/1.1 responses with llhttp, whole ones and those that are read as they arrive."""

from __future__ import annotations

from httptools import HttpParserCallbackError, HttpParserError, HttpResponseParser

from asched.kube.transport import HttpResponse

HEAD_LIMIT_BYTES = 64 * 1024
"""Limit for a head, for trailers, and for what separates two chunks of a body."""
BODY_LIMIT_BYTES = 256 * 1024 * 1024
"""Limit for a body. Lists are read in pages of 500, and an object rarely exceeds 10 KiB."""


class MalformedHttpError(ValueError):
    """The bytes are not an HTTP/1.1 response, or one of ambiguous length or excessive size."""


class BodyTooLargeError(MalformedHttpError):
    """The body exceeds the limit."""

    def __init__(self) -> None:
        super().__init__("the body is too large")


class ResponseParser:
    """Parses the responses of one connection with llhttp (RFC 9112), with limits for their memory.
    A response with an uncertain end is an error; then the connection is unusable."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._responses: list[HttpResponse] = []
        """The complete ones among those expected."""
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        """Status of the final response, once its head is complete."""
        self._framed = False
        """Whether the head delimits the body; if not, the body ends with the connection."""
        self._retry_after: str | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._overhead_bytes = 0
        """Bytes since the last body data or complete head."""

    def feed(self, data: bytes, expected: int = 1) -> list[HttpResponse] | None:
        """The ``expected`` responses, or None if incomplete. Raises MalformedHttpError."""
        body_bytes, complete = self._body_bytes, len(self._responses)
        # llhttp continues with the next response and skips empty lines before it. If the last
        # expected response is complete before the last byte, something follows it.
        view = memoryview(data)
        self._parse(view[:-1])
        if len(self._responses) >= expected:
            raise MalformedHttpError("more data than was requested")
        self._parse(view[-1:])
        if len(self._responses) == expected:
            responses, self._responses = self._responses, []
            return responses
        if len(self._responses) == complete and self._body_bytes == body_bytes:
            self._add_overhead(len(data))
        return None

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except HttpParserError as error:
            raise MalformedHttpError(str(error)) from None

    def _add_overhead(self, size_bytes: int) -> None:
        self._overhead_bytes += size_bytes
        if self._overhead_bytes > HEAD_LIMIT_BYTES:
            raise MalformedHttpError("a head, a chunk's size or trailers without end")

    def end(self, expected: int = 1) -> list[HttpResponse] | None:
        """The responses if the end of the connection completes the last one, else None."""
        if not self._status or self._framed or len(self._responses) + 1 < expected:
            return None
        return [*self._responses, self._finished(reusable=False)]

    def _finished(self, *, reusable: bool) -> HttpResponse:
        body = b"".join(self._body)
        response = HttpResponse(self._status, body, self._retry_after, reusable)
        self._begin()
        return response

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return  # a trailer
        name = name.lower()
        if name == b"content-length":
            self._framed = True
        elif name == b"transfer-encoding":
            # llhttp accepts others if chunked is the last, and leaves their decoding to us.
            if self._framed or value.strip().lower() != b"chunked":
                raise MalformedHttpError("a transfer encoding other than chunked")
            self._framed = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1").strip() or None

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            raise MalformedHttpError("not a response of HTTP/1.1")
        if status >= 200:
            self._status = status
            self._overhead_bytes = 0
        elif status < 100 or status == 101 or self._framed:
            raise MalformedHttpError(f"an unexpected response {status}")
        else:
            self._retry_after = None

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)
        self._body_bytes += len(piece)
        self._overhead_bytes = 0
        if self._body_bytes > BODY_LIMIT_BYTES:
            raise BodyTooLargeError

    def on_message_complete(self) -> None:
        if self._status:  # else an interim response, such as 103
            self._responses.append(self._finished(reusable=self._parser.should_keep_alive()))


class StreamParser(ResponseParser):
    """Parses one response of any length, and returns the parts of its body as they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.complete = False
        """Whether the response has arrived to its end."""

    @property
    def status(self) -> int:
        """0 until the head is complete."""
        return self._status

    @property
    def retry_after(self) -> str | None:
        return self._retry_after

    def feed_stream(self, data: bytes) -> list[bytes]:
        """The next pieces of the body. Raises MalformedHttpError."""
        self._parse(data)
        pieces, self._body = self._body, []
        if not pieces:
            self._add_overhead(len(data))
        return pieces

    def close(self) -> bool:
        """The connection ended. Returns whether that completes the response, or it was complete."""
        self.complete |= bool(self._status) and not self._framed
        return self.complete

    def on_headers_complete(self) -> None:
        if not self.complete:  # else nothing was requested, and the connection is not used again
            super().on_headers_complete()

    def on_body(self, piece: bytes) -> None:
        if not self.complete:
            self._body.append(piece)
            self._overhead_bytes = 0

    def on_message_complete(self) -> None:
        self.complete = bool(self._status)  # not set by an interim response, such as 103
