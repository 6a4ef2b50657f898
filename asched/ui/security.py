"""Who may read: hosts, tokens and headers of the browser interface.

Without a token the server listens only on loopback, and answers only requests for a loopback host
name: a foreign page cannot reach it through a name that resolves to 127.0.0.1. With a token,
programs send it as a bearer token. Browsers exchange it at ``/login`` for a cookie that scripts
cannot read. :mod:`asched.ui.cluster_access` admits the users of a cluster.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from asched.audit.visibility import UnrestrictedViewer, Viewer

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


def equal_secrets(sent: str, secret: str) -> bool:
    """Compares in constant time. Bytes of a header that are not UTF-8 differ."""
    return hmac.compare_digest(sent.encode(errors="surrogateescape"), secret.encode())


def bearer_token(request: web.Request) -> str:
    """The token in the header; empty without one."""
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    return sent.strip() if scheme.lower() == "bearer" else ""


class AccessControl(Protocol):
    """Admits readers."""

    login_hint: str
    """What the login form asks for; empty if there is no login."""
    stream_s: float | None
    """How long a stream of events may last before its reader is checked again; None: any time."""

    def check_host(self, request: web.Request) -> bool:
        """Whether the host name of the request is served."""
        ...

    async def viewer(self, request: web.Request) -> Viewer | None:
        """The reader who sends the request; None if they are not admitted."""
        ...

    async def log_in(self, token: str, response: web.Response) -> bool:
        """Let the client read, by a cookie, if the token is valid. Returns whether it is."""
        ...


class Access(AccessControl):
    """Admits whoever has the token, or without one everybody who reaches the loopback address."""

    stream_s = None

    def __init__(self, token: str = "", secure: bool = False) -> None:
        """``secure``: whether browsers use HTTPS."""
        self.token = token
        self.secure = secure
        self.login_hint = "The token that asched ui was started with" if token else ""

    async def viewer(self, request: web.Request) -> Viewer | None:
        return UnrestrictedViewer() if self.admits(request) else None

    async def log_in(self, token: str, response: web.Response) -> bool:
        if not self.token or not self.is_token(token):
            return False
        self._set_cookie(response)
        return True

    def admits(self, request: web.Request) -> bool:
        """Whether the request has the token, as bearer or as the cookie of a login."""
        if not self.token:
            return True
        return self.is_token(bearer_token(request)) or self._is_session(
            request.cookies.get(COOKIE, "")
        )

    def is_token(self, sent: str) -> bool:
        return equal_secrets(sent, self.token)

    def _set_cookie(self, response: web.Response) -> None:
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
        return equal_secrets(signature, self._signature(expires_s)) and time.time() < int(expires_s)

    def _signature(self, expires_s: str) -> str:
        return hmac.new(self.token.encode(), f"session {expires_s}".encode(), "sha256").hexdigest()

    def check_host(self, request: web.Request) -> bool:
        """Whether the request is for a host name that only this machine has."""
        try:
            host = urlsplit(f"//{request.host}").hostname
        except ValueError:  # a bracket without the other one
            host = None
        return bool(self.token) or is_loopback(host or "")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
