"""HTTP server of the embedded cluster, for kubectl and schedulers."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
import yaml
from aiohttp import web

from asched.apiserver import reviews
from asched.apiserver.auth import ADMIN, SCHEDULER, Auth, User
from asched.apiserver.cluster import EmbeddedCluster
from asched.apiserver.controllers.manager import Controllers
from asched.apiserver.discovery import (
    OPENAPI_V2_DOCUMENT,
    OPENAPI_V2_HEADERS,
    Discovery,
    wants_aggregated,
)
from asched.apiserver.dra.controller import ResourceClaimController
from asched.apiserver.dra.devices import DeviceSpec, SimulatedDriver
from asched.apiserver.errors import StatusError, too_many_requests, unknown_path
from asched.apiserver.faults import Fault, FaultKind, Faults
from asched.apiserver.group_forms import KubernetesVersion
from asched.apiserver.handlers import Request, handle
from asched.apiserver.kubelet import Kubelets, KubeletTimings, simulated_nodes
from asched.apiserver.requests import PathNotServedError, RequestInfo, parse_request
from asched.apiserver.storage import encode
from asched.apiserver.watch import WatchStreams

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
LOOPBACK = (HOST, "::1", "localhost")
"""Hosts that the server may listen on."""
BOOKMARK_INTERVAL_S = 60.0
SHUTDOWN_TIMEOUT_S = 2.0
"""How long a stopping server waits for clients that do not read their responses."""
MAX_BODY_BYTES = 3 * 1024 * 1024
"""The limit of kube-apiserver (``MaxRequestBodyBytes``)."""

_HEALTH = frozenset({"/healthz", "/readyz", "/livez"})
_GROUP_DEPTH = {"/": 2, "s": 3}
"""Slashes in a path up to its version, by the character after ``/api``."""
_JSON = {"Content-Type": "application/json"}
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
_INJECTED_STATUS = {
    500: ("InternalError", "Internal error occurred: injected fault"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within requested timeout"),
}


class TlsFiles(NamedTuple):
    """Server certificate and key, in PEM."""

    certificate: Path
    """Clients trust it through their kubeconfig."""
    key: Path

    def context(self) -> ssl.SSLContext:
        """Raises ValueError if the files do not match, OSError if one cannot be read."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.certificate} and {self.key} are not a certificate and its key: "
                f"{error.reason}"
            ) from None
        return context


class ApiServer:
    """Serves a cluster over HTTP on the loopback interface.

    :param faults: injected faults; may be changed while the server runs.
    :param tokens: bearer tokens and their users; without tokens every client is administrator.
    :param bookmark_interval_s: interval of bookmarks on an idle watch.

    >>> async with ApiServer(EmbeddedCluster()).run() as server:
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
        self.url = ""
        """``http://127.0.0.1:PORT``, or https; empty unless the server runs."""
        self._tls: TlsFiles | None = None
        self._discovery = Discovery(cluster.api.registry)
        self._streams = WatchStreams(cluster.api, self.faults, bookmark_interval_s)

    @asynccontextmanager
    async def run(
        self, host: str = HOST, port: int = 0, tls: TlsFiles | None = None
    ) -> AsyncIterator[ApiServer]:
        """Listen until the end of the block; port 0 selects a free port. Raises OSError for an
        unavailable address, ValueError for one that is not loopback or for invalid TLS files."""
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
            self.url, self._tls = f"{scheme}://{bound_host}:{bound_port}", tls
            yield self
        finally:
            self.url, self._tls = "", None
            self._streams.end_all()
            await runner.cleanup()

    def upgrade(self, version: KubernetesVersion) -> None:
        """Serve another version of Kubernetes from now on. All watches end, as in a restart."""
        self.cluster.api.registry.serve_version(version)
        self._streams.end_all()

    def kubeconfig(self, path: Path, *, user: User = ADMIN) -> Path:
        """Write a kubeconfig file for ``user``, readable by its owner only. Returns ``path``. The
        token is in the server's URL: Go clients send no bearer token over plain HTTP."""
        token = next((text for text, known in self.auth.tokens.items() if known == user), "")
        url = self.url
        if token:
            # The server reads the password only. User names may contain colons, logins may not.
            url = url.replace("://", f"://token:{quote(token, safe='')}@")
        cluster = {"server": url}
        if self._tls is not None:
            cluster["certificate-authority"] = str(self._tls.certificate.absolute())
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "asched", "cluster": cluster}],
            "users": [{"name": user.name, "user": {}}],
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
            if request.method == "POST" and path in reviews.PATHS:
                return await self._review(request, user)
            if path.startswith(("/api/", "/apis/")) and path.count("/") > _GROUP_DEPTH[path[4]]:
                return await self._resources(request, user)
            return self._document(request, user)
        except StatusError as error:
            return _error_response(error)
        except PathNotServedError:
            return web.Response(status=404, text="404 page not found\n")
        except (TypeError, AttributeError, LookupError, ValueError):
            # Input that the type check does not cover. The connection stays open.
            logger.exception("request failed: %s %s", request.method, request.path)
            return _error_response(StatusError(500, "InternalError", _PANIC, details={}))

    async def _review(self, request: web.BaseRequest, user: User) -> web.StreamResponse:
        fault = self.faults.take("create", request.path.rpartition("/")[2])
        if fault is not None:
            early = await self._inject(fault, request)
            if early is not None:
                return early
        body = await _body_of(request)
        return _json_response(201, encode(reviews.review(self.auth, user, request.path, body)))

    async def _resources(self, request: web.BaseRequest, user: User) -> web.StreamResponse:
        info = parse_request(self.cluster.api.registry, request.method, request.path, request.query)
        self.auth.authorize(user, info)
        fault = self.faults.take(info.verb, info.full_resource)
        if fault is not None:
            early = await self._inject(fault, request)
            if early is not None:
                return early
        if info.verb == "watch":
            return await self._streams.serve(request, info)
        response = await self._execute(request, info, user)
        if fault is not None and fault.kind is FaultKind.DROP_AFTER:
            return _abort_connection(request)
        return response

    async def _execute(
        self, request: web.BaseRequest, info: RequestInfo, user: User
    ) -> web.Response:
        body = await _body_of(request) if request.can_read_body else b""
        headers = request.headers
        content_type = headers.get("Content-Type", "application/json").partition(";")[0].strip()
        accept, permits = headers.get("Accept", ""), partial(Auth.permits, user)
        handled = Request(info, body, content_type, accept, permits)
        result = handle(self.cluster.api, handled)
        response = _json_response(result.code, result.body)
        for warning in result.warnings:
            escaped = warning.replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{escaped}"')
        return response

    async def _inject(self, fault: Fault, request: web.BaseRequest) -> web.StreamResponse | None:
        if fault.kind is FaultKind.DELAY:
            await asyncio.sleep(fault.delay_s)
        elif fault.kind is FaultKind.DROP_BEFORE:
            return _abort_connection(request)
        elif fault.kind is FaultKind.STATUS:
            if fault.code == 429:
                raise too_many_requests(fault.retry_after_s)
            reason, message = _INJECTED_STATUS.get(fault.code, ("", "injected fault"))
            raise StatusError(fault.code, reason, message, details={})
        return None

    def _document(self, request: web.BaseRequest, user: User) -> web.Response:
        path = request.path.rstrip("/") or "/"
        Auth.authorize_path(user, request.method.lower(), path)
        accept = request.headers.get("Accept", "")
        if path in _HEALTH:
            return web.Response(text="ok")
        if path == "/version":
            return _json_response(200, encode(_VERSION))
        if path in ("/api", "/apis"):
            aggregated = wants_aggregated(accept)
            body = self._discovery.root(path, aggregated)
            response = _json_response(200, body)
            if aggregated:
                response.headers["Content-Type"] = aggregated
            return response
        if path.startswith(("/api/", "/apis/")):
            return _json_response(200, self._discovery.group(path))
        if path == "/openapi/v2":
            return web.Response(body=OPENAPI_V2_DOCUMENT, headers=OPENAPI_V2_HEADERS)
        if path.startswith("/openapi/v3"):
            return _json_response(200, self._discovery.openapi_v3(path))
        if path == "/":
            return _json_response(200, self._discovery.paths())
        raise unknown_path()


async def _body_of(request: web.BaseRequest) -> bytes:
    """Raises StatusError 413 for a body over the limit of kube-apiserver."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
            raise StatusError(413, "RequestEntityTooLarge", message)
    return bytes(body)


def _json_response(code: int, body: bytes) -> web.Response:
    return web.Response(status=code, body=body, headers=_JSON)


def _error_response(error: StatusError) -> web.Response:
    """The Status response of an error, with Retry-After if it has one."""
    response = _json_response(error.code, encode(error.status()))
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _abort_connection(request: web.BaseRequest) -> web.Response:
    """Abort the connection; the returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of :func:`serve_forever`."""

    host: str = HOST
    port: int = 0
    """0 selects a free port."""
    tls: TlsFiles | None = None
    """None serves plain HTTP."""
    nodes: int = 0
    """Number of simulated nodes at the start."""
    kubeconfig: Path | None = None
    """Where to write the administrator's kubeconfig."""
    scheduler_kubeconfig: Path | None = None
    """Where to write one with the permissions of kube-scheduler; enables authentication."""
    faults: str = ""
    """In the form of :meth:`Faults.parse`."""
    kubelets: bool = True
    controllers: bool = True
    devices: tuple[DeviceSpec, ...] = ()
    """The devices of each node."""
    version: KubernetesVersion = KubernetesVersion.V1_36
    timings: KubeletTimings = field(default_factory=lambda: KubeletTimings(heartbeat_s=10.0))


async def serve_forever(
    options: ServeOptions, *, on_ready: Callable[[ApiServer], None] = lambda server: None
) -> None:
    """Serve an embedded cluster until cancelled; call ``on_ready`` once it listens.

    Raises OSError if the address or a kubeconfig file is unavailable, ValueError for invalid
    faults, an address that is not loopback, or TLS files that do not match.
    """
    cluster = EmbeddedCluster(version=options.version)
    for node in simulated_nodes(options.nodes, ready_since=cluster.api.now_text()):
        cluster.create("nodes", node)
    tokens = None
    if options.scheduler_kubeconfig is not None:
        tokens = {secrets.token_urlsafe(24): user for user in (ADMIN, SCHEDULER)}
    server = ApiServer(cluster, faults=Faults.parse(options.faults), tokens=tokens)
    async with server.run(options.host, options.port, options.tls):
        # Outside the task group, which would wrap an OSError in an exception group.
        if options.kubeconfig is not None:
            server.kubeconfig(options.kubeconfig, user=ADMIN)
        if options.scheduler_kubeconfig is not None:
            server.kubeconfig(options.scheduler_kubeconfig, user=SCHEDULER)
        async with anyio.create_task_group() as group:
            if options.kubelets:
                group.start_soon(Kubelets(cluster, options.timings).run)
            if options.controllers:
                group.start_soon(Controllers(cluster).run)
            group.start_soon(ResourceClaimController(cluster).run)
            for devices in options.devices:
                group.start_soon(SimulatedDriver(cluster, devices).run)
            on_ready(server)
            await anyio.sleep_forever()
