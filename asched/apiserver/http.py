"""The HTTP face of the embedded cluster: what kubectl and schedulers talk to."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml
from aiohttp import web

from asched.apiserver.auth import ADMIN, SCHEDULER, Auth, User
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.discovery import Discovery, OpenApi, wants_aggregated
from asched.apiserver.errors import StatusError, too_many_requests, unknown_path
from asched.apiserver.faults import Fault, FaultKind, Faults
from asched.apiserver.handlers import Request, answer
from asched.apiserver.requests import PathNotServedError, RequestInfo, parse_request
from asched.apiserver.store import encode
from asched.apiserver.streaming import WatchStreams

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
LOOPBACK = (HOST, "::1", "localhost")
"""An embedded cluster is for this machine alone."""
BOOKMARK_INTERVAL_S = 60.0
SHUTDOWN_TIMEOUT_S = 2.0
"""How long a server that stops waits for clients that do not read their answers."""
MAX_BODY_BYTES = 3 * 1024 * 1024
"""kube-apiserver's own limit (``MaxRequestBodyBytes``)."""

_HEALTH = frozenset({"/healthz", "/readyz", "/livez"})
_PANIC = "This request caused apiserver to panic. Look in the logs for details."
_VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2+asched",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
_MESSAGES = {
    500: ("InternalError", "Internal error occurred: injected fault"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within requested timeout"),
}


class TlsFiles(NamedTuple):
    """What a server proves by who it is, in PEM."""

    certificate: Path
    """Clients are told to trust it."""
    key: Path

    def context(self) -> ssl.SSLContext:
        """Raises ValueError where the two do not belong together, OSError where one cannot be read."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.certificate} and {self.key} are no certificate with its key: {error.reason}"
            ) from None
        return context


class ApiServer:
    """Serves a cluster over plain HTTP on the loopback interface.

    :param faults: what goes wrong; may be changed while the server runs.
    :param tokens: bearer tokens and their users; without any, everybody is administrator.
    :param bookmark_interval_s: how often an idle watch with bookmarks gets one.

    >>> async with ApiServer(Cluster()).run() as server:
    ...     print(server.url)
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        *,
        faults: Faults | None = None,
        tokens: dict[str, User] | None = None,
        bookmark_interval_s: float = BOOKMARK_INTERVAL_S,
    ) -> None:
        self.cluster = cluster
        self.faults = faults or Faults()
        self.auth = Auth(tokens)
        self.requests_served = 0
        self._tokens = dict(tokens or {})
        self._url = ""
        self._tls: TlsFiles | None = None
        self._discovery = Discovery(cluster.api.registry)
        self._openapi = OpenApi(cluster.api.registry)
        self._streams = WatchStreams(cluster.api, self.faults, bookmark_interval_s)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``, or https; empty while the server does not run."""
        return self._url

    @asynccontextmanager
    async def run(
        self, host: str = HOST, port: int = 0, tls: TlsFiles | None = None
    ) -> AsyncIterator[ApiServer]:
        """Listen until the block is left; port 0 takes a free one.

        Raises OSError when the address cannot be had, ValueError for one beyond this machine and for
        files that are no certificate with its key.
        """
        if host not in LOOPBACK:
            raise ValueError(
                f"{host!r} is not a loopback address: use one of {', '.join(LOOPBACK)}"
            )
        context = None if tls is None else tls.context()
        server = web.Server(self._handle, access_log=None)
        runner = web.ServerRunner(
            server,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, backlog=1024, ssl_context=context)
            await site.start()
            bound_host, bound_port = runner.addresses[0][:2]
            scheme = "http" if tls is None else "https"
            self._url, self._tls = f"{scheme}://{bound_host}:{bound_port}", tls
            yield self
        finally:
            self._url, self._tls = "", None
            self._streams.end_all()
            await runner.cleanup()

    def kubeconfig(
        self, path: Path, *, user: User = ADMIN, credentials_in_url: bool = True
    ) -> Path:
        """Write a kubeconfig file for ``user``, readable by its owner only, and answer its path.

        :param credentials_in_url: put them into the server's URL, which every client sends;
            otherwise a bearer token is written, which kubectl and other Go clients keep to
            themselves over plain HTTP.
        """
        token = next((text for text, known in self._tokens.items() if known == user), "")
        url, login = self._url, {}
        if token and credentials_in_url:
            # Only the password counts; a user's own name may hold a colon, which a login may not.
            url = url.replace("://", f"://token:{quote(token, safe='')}@")
        elif token:
            login = {"token": token}
        cluster = {"server": url}
        if self._tls is not None:
            cluster["certificate-authority"] = str(self._tls.certificate.absolute())
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "asched", "cluster": cluster}],
            "users": [{"name": user.name, "user": login}],
            "contexts": [{"name": "asched", "context": {"cluster": "asched", "user": user.name}}],
            "current-context": "asched",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests_served += 1
        try:
            user = self.auth.authenticate(request.headers.get("Authorization", ""))
            path = request.path
            if path.startswith(("/api/", "/apis/")) and path.count("/") > _GROUP_DEPTH[path[4]]:
                return await self._resources(request, user)
            return self._document(request, user)
        except StatusError as error:
            return failure(error)
        except PathNotServedError:
            return web.Response(status=404, text="404 page not found\n")
        except (TypeError, AttributeError, LookupError, ValueError):
            # What the shape check let through: our own mistake, which must not end a connection.
            logger.exception("request failed: %s %s", request.method, request.path)
            return failure(StatusError(500, "InternalError", _PANIC, details={}))

    # --- resources -----------------------------------------------------------------------------

    async def _resources(self, request: web.BaseRequest, user: User) -> web.StreamResponse:
        info = parse_request(self.cluster.api.registry, request.method, request.path, request.query)
        self.auth.authorize(user, info)
        fault = self.faults.take(info.verb, info.full_resource)
        if fault is not None:
            early = await self._meet(fault, request)
            if early is not None:
                return early
        if info.verb == "watch":
            return await self._streams.serve(request, info)
        response = await self._answer(request, info)
        if fault is not None and fault.kind is FaultKind.DROP_AFTER:
            return broken(request)
        return response

    async def _answer(self, request: web.BaseRequest, info: RequestInfo) -> web.Response:
        body = await _body_of(request) if request.can_read_body else b""
        headers = request.headers
        content_type = headers.get("Content-Type", "application/json").partition(";")[0].strip()
        result = answer(
            self.cluster.api, Request(info, body, content_type, headers.get("Accept", ""))
        )
        response = json_response(result.code, result.body)
        for warning in result.warnings:
            response.headers.add(
                "Warning", f'299 - "{warning.replace(chr(34), chr(92) + chr(34))}"'
            )
        return response

    async def _meet(self, fault: Fault, request: web.BaseRequest) -> web.StreamResponse | None:
        if fault.kind is FaultKind.DELAY:
            await asyncio.sleep(fault.delay_s)
        elif fault.kind is FaultKind.DROP_BEFORE:
            return broken(request)
        elif fault.kind is FaultKind.STATUS:
            if fault.code == 429:
                raise too_many_requests(fault.retry_after_s)
            reason, message = _MESSAGES.get(fault.code, ("", "injected fault"))
            raise StatusError(fault.code, reason, message, details={})
        return None

    # --- everything else -----------------------------------------------------------------------

    def _document(self, request: web.BaseRequest, user: User) -> web.Response:
        path = request.path.rstrip("/") or "/"
        Auth.authorize_path(user, request.method.lower(), path)
        accept = request.headers.get("Accept", "")
        if path in _HEALTH:
            return web.Response(text="ok")
        if path == "/version":
            return json_response(200, encode(_VERSION))
        if path in ("/api", "/apis"):
            aggregated = wants_aggregated(accept)
            body = self._discovery.root(path, aggregated)
            response = json_response(200, body)
            if aggregated:
                response.headers["Content-Type"] = aggregated
            return response
        if path.startswith(("/api/", "/apis/")):
            return json_response(200, self._discovery.group(path))
        if path == "/openapi/v2":
            return self._openapi.v2_response()
        if path.startswith("/openapi/v3"):
            return json_response(200, self._openapi.v3(path))
        if path == "/":
            return json_response(200, self._discovery.paths())
        raise unknown_path()


async def _body_of(request: web.BaseRequest) -> bytes:
    """Raises StatusError 413 for a body that the API server would not read to its end."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
            raise StatusError(413, "RequestEntityTooLarge", message)
    return bytes(body)


_GROUP_DEPTH = {"/": 2, "s": 3}
"""Slashes in a path up to its version, by the character after ``/api``."""


def json_response(code: int, body: bytes) -> web.Response:
    return web.Response(status=code, body=body, headers=_JSON)


_JSON = {"Content-Type": "application/json"}


def failure(error: StatusError) -> web.Response:
    """The Status body of an error, with Retry-After where it says when."""
    response = json_response(error.code, encode(error.status()))
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def broken(request: web.BaseRequest) -> web.Response:
    """Break the connection; the response is for nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def admin_and_scheduler_tokens(admin: str, scheduler: str) -> dict[str, User]:
    """Tokens for the administrator and for the built-in scheduler user."""
    return {admin: ADMIN, scheduler: SCHEDULER}
