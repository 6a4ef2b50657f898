"""Questions of the API: what they are called, their parameters, and who may have the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from asched.audit.lookup import PodName
from asched.audit.times import parse_time_ns
from asched.audit.visibility import AnswerScope, Visible
from asched.ui.errors import RequestError
from asched.ui.journal_progress import Moment
from asched.ui.journal_reader import JournalReader

VISIBLE: Final = web.RequestKey("visible", Visible)
"""What the reader of a request may see."""
_MAX_TEXT: Final = 300


class Question(NamedTuple):
    """The parameters of a request, checked when they are read."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    visible: Visible
    """What the reader may see. Needed where an answer counts or limits: the rest is removed when
    the answer is released."""

    @classmethod
    def of(cls, request: web.Request) -> Question:
        return cls(request.match_info, request.query, request[VISIBLE])

    def text(self, name: str) -> str:
        """Raises :class:`RequestError` if it is too long."""
        value = self.query.get(name, "")
        if len(value) > _MAX_TEXT:
            raise RequestError(f"{name}: longer than {_MAX_TEXT} characters")
        return value

    def number(self, name: str, *, most: int | None = None) -> int | None:
        """A parameter of the path or query, at least 1; None if it is missing.

        Raises :class:`RequestError`.
        """
        text = self.path.get(name) or self.query.get(name) or ""
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 19) or int(text) < 1:
            raise RequestError(f"{name}: {text[:40]!r} is not a number from 1 on")
        return int(text) if most is None else min(int(text), most)

    def time_ns(self, name: str) -> int | None:
        """A time; None if it is missing. Raises TimeTextError."""
        text = self.text(name)
        # A plus sign that is not escaped is a space in a query.
        return parse_time_ns(text.replace(" ", "+")) if text else None

    def moment(self, at: str = "at", seq: str = "seq") -> Moment:
        """Raises :class:`RequestError` if both are given, TimeTextError."""
        moment = Moment(self.number(seq), self.time_ns(at))
        if None not in moment:
            raise RequestError(f"give {at} or {seq}, not both")
        return moment

    @property
    def pod(self) -> PodName:
        return PodName(self.path["namespace"], self.path["name"])


Handler = Callable[[JournalReader, Question], Awaitable[Any]]


class Parameter(NamedTuple):
    """A query parameter."""

    name: str
    summary: str
    kind: str = "string"


MOMENT: Final = (
    Parameter("at", "The answer as of this time: RFC 3339, or a duration such as 2h30m ago."),
    Parameter("seq", "The answer as of this record.", "integer"),
)


class ApiRoute(NamedTuple):
    """A question that the API answers."""

    path: str
    summary: str
    answers: type[msgspec.Struct]
    handler: Handler
    parameters: tuple[Parameter, ...] = ()
    rows: Callable[[Any], Sequence[msgspec.Struct]] | None = None
    """The table in the answer, for CSV; None if it has none."""
    scope: AnswerScope | None = None
    """Who may have the answer. Without one, only readers who may see everything."""
    fixed_by: tuple[str, ...] = ()
    """The parameters with which the answer is always the same for a reader."""
