"""Answers of HTTP/1.1, taken out of the bytes of a connection (RFC 9112).

llhttp parses. What is added here is the memory that an answer may take, and doubt: an answer whose end
is uncertain is an error, after which nothing that the connection brings can be believed.
"""

from __future__ import annotations

from typing import NamedTuple

from httptools import HttpParserCallbackError, HttpParserError, HttpResponseParser

HEAD_LIMIT_BYTES = 64 * 1024
"""Of a head, of trailers, and of what stands between two pieces of a body."""
BODY_LIMIT_BYTES = 256 * 1024 * 1024
"""Of a body. Lists come in pages of 500, and an object is rarely larger than some 10 KiB."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    retry_after: str | None
    """The header ``Retry-After`` as it came."""
    reusable: bool
    """Whether the connection may serve another request."""


class MalformedHttpError(ValueError):
    """What came is no answer of HTTP/1.1, one of ambiguous length, or too large."""


class AnswerParser:
    """Takes one answer after the other out of what a connection brings."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._answers: list[HttpAnswer] = []
        """Those that are complete, of the ones that are due."""
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        """Of the final answer, once its head is there."""
        self._framed = False
        """Whether the head says where the body ends; if not, it lasts as long as the connection."""
        self._retry_after: str | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._other_bytes = 0
        """What came since the last that was of use."""

    def feed(self, data: bytes, due: int = 1) -> list[HttpAnswer] | None:
        """The answers to ``due`` requests once ``data`` completes the last of them. Raises
        MalformedHttpError, also for bytes that follow it: nobody asked for them."""
        body_bytes, complete = self._body_bytes, len(self._answers)
        try:
            # llhttp would go on to the next answer, and passes over empty lines before it. A last
            # answer that is complete before the last byte is one with something behind it.
            self._parser.feed_data(data[:-1])
            if len(self._answers) >= due:
                raise MalformedHttpError("more than was asked for")
            self._parser.feed_data(data[-1:])
        except HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except HttpParserError as error:
            raise MalformedHttpError(str(error)) from None
        if len(self._answers) == due:
            answers, self._answers = self._answers, []
            return answers
        if len(self._answers) == complete and self._body_bytes == body_bytes:
            self._other_bytes += len(data)
            if self._other_bytes > HEAD_LIMIT_BYTES:
                raise MalformedHttpError("a head, a chunk's size or trailers without end")
        return None

    def end(self, due: int = 1) -> list[HttpAnswer] | None:
        """The connection ended: the answers where that is the end of the last one, None if it broke
        off."""
        if not self._status or self._framed or len(self._answers) + 1 < due:
            return None
        return [*self._answers, self._finished(reusable=False)]

    def _finished(self, *, reusable: bool) -> HttpAnswer:
        body = b"".join(self._body)
        answer = HttpAnswer(self._status, body, self._retry_after, reusable)
        self._begin()
        return answer

    # -- what llhttp tells ----------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:
            return  # a trailer
        name = name.lower()
        if name == b"content-length":
            self._framed = True
        elif name == b"transfer-encoding":
            # llhttp takes others where chunked is the last, and leaves their decoding to us.
            if self._framed or value.strip().lower() != b"chunked":
                raise MalformedHttpError("a transfer encoding other than chunked")
            self._framed = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1").strip() or None

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            raise MalformedHttpError("not an answer of HTTP/1.1")
        if status >= 200:
            self._status = status
            self._other_bytes = 0
        elif status < 100 or status == 101 or self._framed:
            raise MalformedHttpError(f"an answer {status} that nobody asked for")
        else:
            self._retry_after = None

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)
        self._body_bytes += len(piece)
        self._other_bytes = 0
        if self._body_bytes > BODY_LIMIT_BYTES:
            raise MalformedHttpError("a body of too many bytes")

    def on_message_complete(self) -> None:
        if self._status:  # and not an interim answer, such as 103
            self._answers.append(self._finished(reusable=self._parser.should_keep_alive()))
