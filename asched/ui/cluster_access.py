"""Readers that the API server authenticates and authorizes, for ``asched ui`` in a cluster.

A bearer token is checked by TokenReview. What its user may see is asked by SubjectAccessReview:
``list`` of pods, in all namespaces or in each one, and of nodes. Both results are kept for a short
time. If the API server does not answer, every request fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from aiohttp import web

from asched.audit.visibility import EVERYTHING, Viewer, Visible
from asched.ui.review_cache import Lifetimes, ReviewCache
from asched.ui.security import COOKIE, AccessControl, bearer_token

TOKEN_LIFETIMES: Final = Lifetimes(60.0, 10.0, 2_000, 32)
ACCESS_LIFETIMES: Final = Lifetimes(300.0, 30.0, 50_000, 1_000)
SESSION_S: Final = 12 * 3600
MAX_SESSIONS: Final = 2_000
MAX_NAMESPACES: Final = 2_000
"""Namespaces that are checked for one reader; others stay hidden."""
_PARALLEL: Final = 16
"""Reviews at a time for one reader."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=:-]{8,16384}")


class ReviewedReader(Protocol):
    """An authenticated user."""

    @property
    def identity(self) -> str:
        """Equal for equal users, with groups and all else that rules can name."""
        ...


ReaderT = TypeVar("ReaderT", bound=ReviewedReader)


class Reviewer(Protocol[ReaderT]):
    """Answers reviews. Methods raise :class:`~asched.ui.errors.ReviewUnavailableError`."""

    async def authenticate(self, token: str) -> ReaderT | None:
        """The user of a token; None if it is not valid."""
        ...

    async def may_list(self, user: ReaderT, resource: str, namespace: str) -> bool:
        """An empty namespace means all of them."""
        ...


class ClusterAccess(AccessControl, Generic[ReaderT]):
    """Admits users of the cluster."""

    login_hint = "A token of the cluster, such as from: kubectl create token NAME"
    stream_s = 300.0

    def __init__(
        self,
        reviewer: Reviewer[ReaderT],
        secure: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``secure``: whether browsers use HTTPS."""
        self.secure = secure
        self._reviewer = reviewer
        self._now_s = monotonic_s
        self._readers: ReviewCache[bytes, ReaderT | None] = ReviewCache(
            TOKEN_LIFETIMES, monotonic_s
        )
        self._allowed: ReviewCache[tuple[str, str, str], bool] = ReviewCache(
            ACCESS_LIFETIMES, monotonic_s
        )
        self._sessions: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def check_host(self, request: web.Request) -> bool:
        return True  # a foreign page has no token, and its requests no cookie

    async def viewer(self, request: web.Request) -> Viewer | None:
        return await self.reader(
            bearer_token(request) or self._session(request.cookies.get(COOKIE, ""))
        )

    async def reader(self, token: str) -> Viewer | None:
        """The user of a token of the cluster; None if it is not valid."""
        user = await self._user_of(token)
        return None if user is None else _ClusterViewer(self, user)

    async def log_in(self, token: str, response: web.Response) -> bool:
        if await self._user_of(token) is None:
            return False
        self._expire()
        name = secrets.token_urlsafe(32)
        self._sessions[name] = (self._now_s() + SESSION_S, token)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        response.set_cookie(
            COOKIE, name, max_age=SESSION_S, httponly=True, secure=self.secure, samesite="Strict"
        )
        return True

    async def _user_of(self, token: str) -> ReaderT | None:
        if not _TOKEN.fullmatch(token):
            return None
        key = hashlib.sha256(token.encode()).digest()
        return await self._readers.get(key, lambda: self._reviewer.authenticate(token))

    def _session(self, name: str) -> str:
        """The token of a login; empty without one."""
        self._expire()
        return self._sessions.get(name, (0.0, ""))[1]

    def _expire(self) -> None:
        while self._sessions and next(iter(self._sessions.values()))[0] <= self._now_s():
            self._sessions.popitem(last=False)

    async def may_list(self, user: ReaderT, resource: str, namespace: str = "") -> bool:
        key = (user.identity, resource, namespace)
        return await self._allowed.get(
            key, lambda: self._reviewer.may_list(user, resource, namespace)
        )


class _ClusterViewer(Viewer, Generic[ReaderT]):
    """An authenticated user of the cluster."""

    def __init__(self, access: ClusterAccess[ReaderT], user: ReaderT) -> None:
        self._access = access
        self._user = user

    async def visible(self, namespaces: frozenset[str]) -> Visible:
        everywhere, nodes = await asyncio.gather(
            self._access.may_list(self._user, "pods"), self._access.may_list(self._user, "nodes")
        )
        if everywhere:
            return EVERYTHING if nodes else Visible(everywhere=True)
        asked = sorted(namespaces)[:MAX_NAMESPACES]
        limit = asyncio.Semaphore(_PARALLEL)

        async def allowed(namespace: str) -> bool:
            async with limit:
                return await self._access.may_list(self._user, "pods", namespace)

        found = await asyncio.gather(*map(allowed, asked))
        seen = (name for name, may in zip(asked, found, strict=True) if may)
        return Visible(False, nodes, frozenset(seen), len(asked) == len(namespaces))
