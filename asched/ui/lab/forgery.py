"""Protects requests that change something against those that other sites make a browser send."""

from __future__ import annotations

import secrets
from typing import Final

from aiohttp import web

from asched.ui.errors import ForbiddenError
from asched.ui.security import equal_secrets

TOKEN_FIELD: Final = "formToken"
TOKEN_HEADER: Final = "X-Asched-Form-Token"


class ForgeryCheck:
    """A request must have the token of this process, which only its own pages can read."""

    def __init__(self) -> None:
        self.token: Final = secrets.token_urlsafe(32)

    def check(self, request: web.Request, sent: str) -> None:
        """Raises :class:`ForbiddenError`. ``sent``: the token in the request."""
        site = request.headers.get("Sec-Fetch-Site")
        origin = request.headers.get("Origin")
        if site is not None:
            own = site == "same-origin"
        else:
            # Programs send neither header, browsers without the first one send the second.
            own = origin is None or origin.partition("://")[2] == request.host
        if not own:
            raise ForbiddenError("the request comes from another site")
        if not equal_secrets(sent, self.token):
            raise ForbiddenError(
                "the form is outdated: reload the page; programs send formToken of"
                f" /api/v1/lab as header {TOKEN_HEADER}"
            )
