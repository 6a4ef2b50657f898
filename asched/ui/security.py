"""Who may read: hosts, tokens and headers of the browser interface.

Without a token the server listens only on loopback, and answers only requests for a loopback host
name: a foreign page cannot reach it through a name that resolves to 127.0.0.1. With a token,
programs send it as a bearer token. Browsers exchange it at ``/login`` for a cookie that scripts
cannot read.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

MIN_TOKEN_LENGTH: Final = 16
SESSION_S: Final = 12 * 3600
COOKIE: Final = "asched_session"

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Access(NamedTuple):
    """Who may read."""

    token: str = ""
    """Empty: everybody who reaches the loopback address."""
    secure: bool = False
    """Whether browsers use HTTPS."""

    def admits(self, request: web.Request) -> bool:
        """Whether the request has the token, as bearer or as the cookie of a login."""
        if not self.token:
            return True
        scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(sent.strip()):
            return True
        return self._is_session(request.cookies.get(COOKIE, ""))

    def is_token(self, sent: str) -> bool:
        return hmac.compare_digest(sent.encode(), self.token.encode())

    def log_in(self, response: web.Response) -> None:
        """Let the client read for :data:`SESSION_S`."""
        expires_s = int(time.time()) + SESSION_S
        value = f"{expires_s}.{self._signature(str(expires_s))}"
        response.set_cookie(
            COOKIE,
            value,
            max_age=SESSION_S,
            httponly=True,
            secure=self.secure,
            samesite="Strict",
        )

    def _is_session(self, cookie: str) -> bool:
        expires_s, _, signature = cookie.partition(".")
        if not (expires_s.isascii() and expires_s.isdecimal()):
            return False
        genuine = hmac.compare_digest(signature.encode(), self._signature(expires_s).encode())
        return genuine and time.time() < int(expires_s)

    def _signature(self, expires_s: str) -> str:
        return hmac.new(self.token.encode(), f"session {expires_s}".encode(), "sha256").hexdigest()

    def check_host(self, request: web.Request) -> bool:
        """Whether the request is for a host name that only this machine has."""
        return bool(self.token) or is_loopback(urlsplit(f"//{request.host}").hostname or "")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
