"""Answers of HTTP/1.1: whole, in pieces, and those that must not be believed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asched.kube.http1 import AnswerParser, HttpAnswer, MalformedHttpError


def fed(*pieces: bytes) -> HttpAnswer | None:
    parser = AnswerParser()
    answers = [parser.feed(piece) for piece in pieces]
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
def test_a_body_of_known_length_however_it_is_cut(body: bytes, places: list[int]) -> None:
    answer = fed(*cut(plain(201, body), places))
    assert answer == HttpAnswer(201, body, None, reusable=True)


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=5),
    st.sampled_from([b"", b"Digest: x\r\n", b"A: b\r\nC: d\r\n"]),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_a_chunked_body_however_it_is_cut(
    chunks: list[bytes], trailers: bytes, places: list[int]
) -> None:
    answer = fed(*cut(chunked(chunks, trailers), places))
    assert answer == HttpAnswer(200, b"".join(chunks), None, reusable=True)


def test_one_answer_after_the_other() -> None:
    parser = AnswerParser()
    first = parser.feed(chunked([b"one"]))
    second = parser.feed(plain(404, b"two", "Retry-After: 3"))
    third = parser.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert first is not None
    assert first.body == b"one"
    assert second == HttpAnswer(404, b"two", "3", reusable=True)
    assert third == HttpAnswer(204, b"", None, reusable=True)


def test_interim_answers_are_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    assert fed(interim + plain(200, b"x")) == HttpAnswer(200, b"x", None, reusable=True)


def test_a_body_without_length_ends_with_the_connection() -> None:
    parser = AnswerParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nab") is None
    assert parser.feed(b"cd") is None
    assert parser.end() == HttpAnswer(200, b"abcd", None, reusable=False)


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\n", plain(200, b"abc")[:-1], chunked([b"abc"])[:-2]]
)
def test_an_answer_that_broke_off_is_none(begun: bytes) -> None:
    parser = AnswerParser()
    assert parser.feed(begun) is None
    assert parser.end() is None


@pytest.mark.parametrize("fields", ["Connection: close", "connection: Keep-Alive, Close"])
def test_a_connection_that_the_server_closes_is_not_used_again(fields: str) -> None:
    answer = fed(plain(200, b"", fields))
    assert answer is not None
    assert not answer.reusable


def test_a_length_beside_chunks_is_not_believed_and_ends_the_connection() -> None:
    both = chunked([b"abc"]).replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n", 1)
    assert fed(both) == HttpAnswer(200, b"abc", None, reusable=False)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        plain(200, b"abc", "Content-Length: 2"),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        plain(200, b"abc") + b"d",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_what_cannot_be_understood_is_refused(nonsense: bytes) -> None:
    with pytest.raises(MalformedHttpError):
        fed(nonsense)
