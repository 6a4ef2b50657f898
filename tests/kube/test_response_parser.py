"""HTTP/1.1 responses: complete, in chunks, and invalid."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.kube.response_parser import (
    BODY_LIMIT_BYTES,
    HEAD_LIMIT_BYTES,
    MalformedHttpError,
    ResponseParser,
)
from asched.kube.transport import HttpResponse

OK_HEAD = b"HTTP/1.1 200 OK\r\n"
OK_CHUNKED = OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def fed(*pieces: bytes) -> HttpResponse | None:
    answers = fed_line(1, *pieces)
    return answers[0] if answers is not None else None


def fed_line(due: int, *pieces: bytes) -> list[HttpResponse] | None:
    parser = ResponseParser()
    answers = [parser.feed(piece, due) for piece in pieces]
    assert not any(answers[:-1]), "complete before its last byte"
    return answers[-1]


def plain(status: int, body: bytes, *fields: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *fields))
    return head.encode() + b"\r\n\r\n" + body


def chunked(chunks: list[bytes], trailers: bytes = b"") -> bytes:
    parts = [b"HTTP/1.1 200 OK\r\ntransfer-encoding:  Chunked\r\n\r\n"]
    parts += [b"%x;note=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks]
    return b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % len(whole) for place in places), len(whole)]
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(marks)]
    return [piece for piece in pieces if piece]


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=8))
def test_body_with_length_in_any_chunks(body: bytes, places: list[int]) -> None:
    answer = fed(*cut(plain(201, body), places))
    assert answer == HttpResponse(201, body, None, reusable=True)


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=5),
    st.sampled_from([b"", b"Digest: x\r\n", b"A: b\r\nC: d\r\n"]),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_chunked_body_in_any_chunks(
    chunks: list[bytes], trailers: bytes, places: list[int]
) -> None:
    answer = fed(*cut(chunked(chunks, trailers), places))
    assert answer == HttpResponse(200, b"".join(chunks), None, reusable=True)


def test_consecutive_responses() -> None:
    parser = ResponseParser()
    first = parser.feed(chunked([b"one"]))
    second = parser.feed(plain(404, b"two", "Retry-After: 3"))
    third = parser.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert first == [HttpResponse(200, b"one", None, reusable=True)]
    assert second == [HttpResponse(404, b"two", "3", reusable=True)]
    assert third == [HttpResponse(204, b"", None, reusable=True)]


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=5),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_pipelined_responses_in_any_chunks(
    bodies: list[bytes], in_chunks: bool, places: list[int]
) -> None:
    whole = [chunked([body] if body else []) if in_chunks else plain(200, body) for body in bodies]
    answers = fed_line(len(bodies), *cut(b"".join(whole), places))
    assert answers == [HttpResponse(200, body, None, reusable=True) for body in bodies]


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 10_000), max_size=4))
def test_more_responses_than_expected_are_rejected(due: int, more: int, places: list[int]) -> None:
    parser = ResponseParser()
    pieces = cut(plain(200, b"x") * (due + more), places)
    enough = len(plain(200, b"x")) * due
    for piece in pieces:
        enough -= len(piece)
        if enough < 0:
            with pytest.raises(MalformedHttpError, match="more data than was requested"):
                parser.feed(piece, due)
            return
        if parser.feed(piece, due) is not None:
            assert not enough
            return  # the pool closes the connection at the next chunk, which is unsolicited
    raise AssertionError("every expected response had arrived")


def test_pipeline_that_ends_with_connection_is_complete() -> None:
    parser = ResponseParser()
    assert parser.feed(plain(200, b"a") + b"HTTP/1.0 200 OK\r\n\r\nb", 2) is None
    assert parser.end(2) == [
        HttpResponse(200, b"a", None, reusable=True), HttpResponse(200, b"b", None, reusable=False)
    ]  # fmt: skip


def test_broken_pipeline_has_no_responses() -> None:
    parser = ResponseParser()
    assert parser.feed(plain(200, b"a") + b"HTTP/1.0 200 OK\r\n\r\nb", 3) is None
    assert parser.end(3) is None


def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    assert fed(interim + plain(200, b"x")) == HttpResponse(200, b"x", None, reusable=True)


def test_body_without_length_ends_with_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nab") is None
    assert parser.feed(b"cd") is None
    assert parser.end() == [HttpResponse(200, b"abcd", None, reusable=False)]


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\n", plain(200, b"abc")[:-1], chunked([b"abc"])[:-2]]
)
def test_broken_response_is_none(begun: bytes) -> None:
    parser = ResponseParser()
    assert parser.feed(begun) is None
    assert parser.end() is None


@pytest.mark.parametrize("fields", ["Connection: close", "connection: Keep-Alive, Close"])
def test_connection_closed_by_server_is_not_reusable(fields: str) -> None:
    answer = fed(plain(200, b"", fields))
    assert answer is not None
    assert not answer.reusable


@pytest.mark.parametrize("status", [204, 304])
def test_responses_without_body_ignore_length(status: int) -> None:
    answer = b"HTTP/1.1 %d Whatever\r\nContent-Length: 3\r\n\r\n" % status
    assert fed(answer) == HttpResponse(status, b"", None, reusable=True)


def test_trailers_and_interim_headers_are_ignored() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\n\r\n"
    late = chunked([b"abc"], b"Retry-After: 9\r\n")
    assert fed(early + late) == HttpResponse(200, b"abc", None, reusable=True)


HEADS = [
    b"Content-Length: 3",
    b"Content-Length: 1",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Connection: close",
    b"Retry-After: 7",
    b"X: a\n b",
]
BODIES = [b"", b"abc", b"abcd", b"abc\r\n", b"3\r\nabc\r\n0\r\n\r\n", b"3\nabc\n0\n\n"]


def outcome(pieces: list[bytes]) -> HttpResponse | str:
    """The result, up to the end of the connection."""
    parser = ResponseParser()
    answers = None
    for piece in pieces:
        if answers is not None:
            return "refused"  # as the pool does with unsolicited data
        try:
            answers = parser.feed(piece)
        except MalformedHttpError:
            return "refused"
    answers = answers or parser.end()
    return answers[0] if answers else "broken off"


@given(
    st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 103 X", b"HTTP/1.1 204"]),
    st.lists(st.sampled_from(HEADS), max_size=3),
    st.sampled_from(BODIES),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_chunking_does_not_change_result(
    line: bytes, fields: list[bytes], body: bytes, places: list[int]
) -> None:
    whole = b"\r\n".join([line, *fields]) + b"\r\n\r\n" + body
    assert outcome(cut(whole, places)) == outcome([whole])


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: 3\r\n\r\nabc",
        plain(200, b"abc", "Content-Length: 2"),
        plain(200, b"abc", "Content-Length: 3"),
        plain(200, b"abc", "Transfer-Encoding: chunked"),
        chunked([b"abc"]).replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n", 1),
        OK_HEAD + b"Content-Length: -1\r\n\r\n",
        OK_HEAD + b"Content-Length: 0x3\r\n\r\n",
        OK_HEAD + b"Content-Length: 3, 3\r\n\r\n",
        OK_HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK_HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        OK_HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK_HEAD + b"X: a\nContent-Length: 3\r\n\r\nabc",
        OK_CHUNKED + b"0x1\r\n",
        OK_CHUNKED + b"-1\r\n",
        OK_CHUNKED + b"2\r\nabc\r\n",
        OK_CHUNKED + b"1" * 5000,
        plain(200, b"abc") + b"d",
        plain(200, b"abc") + b"\r\n",
        plain(200, b"abc") + plain(200, b"abc"),
        chunked([b"abc"]) + b"\n",
        chunked([b"abc"], b"Content-Length: 1\r\n"),
        plain(200, b"abc", "Connection: close") + b"d",
    ],
)
def test_malformed_response_is_rejected(nonsense: bytes) -> None:
    with pytest.raises(MalformedHttpError):
        fed(nonsense)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (OK_HEAD, b"a: b\r\n"),
        (OK_HEAD + b"a: ", b"b"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK_CHUNKED + b"1;", b"note"),
        (OK_CHUNKED + b"0\r\n", b"a: b\r\n"),
    ],
)
def test_endless_response_is_rejected(begin: bytes, more: bytes) -> None:
    parser = ResponseParser()
    parser.feed(begin or more)
    piece = more * (1000 // len(more) + 1)
    for _ in range(HEAD_LIMIT_BYTES // len(piece) - 1):
        assert parser.feed(piece) is None
    with pytest.raises(MalformedHttpError, match="without end"):
        parser.feed(piece * 3)


@pytest.mark.parametrize("chunks", [False, True])
def test_body_is_limited(chunks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asched.kube.response_parser.BODY_LIMIT_BYTES", 1000)

    def answer_of(body: bytes) -> bytes:
        return chunked([body[:500], body[500:]]) if chunks else plain(200, body)

    assert fed(answer_of(b"a" * 1000)) == HttpResponse(200, b"a" * 1000, None, reusable=True)
    with pytest.raises(MalformedHttpError, match="too large"):
        fed(answer_of(b"a" * 1001))
    assert BODY_LIMIT_BYTES > 100 * 2**20, "a page of large objects has room"
