"""Opening a connection to a cluster: its credentials, and a client that uses them.

Service accounts and kubeconfigs with a token are read here. kubernetes-asyncio reads all others:
client certificates, exec plugins, OIDC and other auth providers. Its import takes 0.3 s and 35 MB.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
import anyio
import yaml

from asched import __version__
from asched.config.yaml import read_limited
from asched.kube.client import ApiClient, CredentialSource, RenewingCredentials
from asched.kube.errors import CredentialPluginError, KubeConfigError, one_line
from asched.kube.http import HttpTransport
from asched.kube.pool import ConnectionPool
from asched.kube.timing import Clock, RequestBudget, RetryPolicy, SystemClock
from asched.kube.transport import Credentials, ObservedTransport, RequestObserver, Transport

USER_AGENT = f"asched/{__version__}"
MAX_CONNECTIONS = 128
"""Limit for kept-alive connections, and a separate one for watches."""
KEEPALIVE_S = 60.0

TOKEN_FILE_REREAD = timedelta(minutes=1)
"""Lifetime of a token that was read from a file; client-go uses the same."""
EXPIRY_MARGIN = timedelta(seconds=30)
"""How long before its expiry a token is renewed."""
LOAD_TIMEOUT_S = 60.0
"""Limit for exec plugins and token requests to identity providers."""
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_PLAIN_USER: Final = {"token", "tokenFile"}
_PLAIN_CLUSTER: Final = {"server", "certificate-authority", "insecure-skip-tls-verify"}


@asynccontextmanager
async def connect(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    qps: float | None = None,
    burst: int | None = None,
    observer: RequestObserver | None = None,
) -> AsyncIterator[ApiClient]:
    """A client for the cluster that ``kubeconfig`` (or the environment) names.

    ``qps`` and ``burst`` limit the request rate; without ``qps`` there is no limit. Certificates
    are verified unless the kubeconfig disables it. Raises KubeConfigError.
    """
    clock = SystemClock()
    budget = RequestBudget(qps, burst or max(1, round(2 * qps)), clock) if qps else None
    source = find_credentials(kubeconfig, context)
    async with open_client(
        source, clock=clock, random=Random(), budget=budget, observer=observer
    ) as client:
        yield client


@asynccontextmanager
async def open_client(
    source: CredentialSource,
    *,
    clock: Clock,
    random: Random,
    budget: RequestBudget | None = None,
    retry: RetryPolicy | None = None,
    observer: RequestObserver | None = None,
) -> AsyncIterator[ApiClient]:
    """As :func:`connect`, with credentials, time and randomness injected."""
    loaded = await source.load(clock.utc())
    connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S)
    pool = ConnectionPool(MAX_CONNECTIONS, KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        try:
            transport: Transport = HttpTransport(session, pool)
            if observer is not None:
                transport = ObservedTransport(transport, observer, clock)
            yield ApiClient(
                transport,
                RenewingCredentials(source, loaded, clock),
                clock=clock,
                random=random,
                budget=budget,
                retry=retry or RetryPolicy(),
            )
        finally:
            await pool.close()


def find_credentials(kubeconfig: Path | None, context: str | None) -> CredentialSource:
    """``kubeconfig`` if given, else $KUBECONFIG, else the pod's service account, else
    ``~/.kube/config``.

    This is kubectl's order with the pod before the home directory. Several files in $KUBECONFIG are
    merged. Raises KubeConfigError if there is no source.
    """
    if kubeconfig is not None:
        return KubeConfig([kubeconfig.expanduser()], context)
    if named := os.environ.get("KUBECONFIG", "").strip(os.pathsep):
        files = [Path(name).expanduser() for name in named.split(os.pathsep) if name]
        return KubeConfig([file for file in files if file.exists()] or files[:1], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        if context is not None:
            raise KubeConfigError("a context needs a kubeconfig, but the service account is used")
        return ServiceAccount()
    home = Path.home() / ".kube" / "config"
    if not home.is_file():
        raise KubeConfigError(
            f"no cluster: give --kubeconfig, set KUBECONFIG, create {home}, or run in a cluster"
        )
    return KubeConfig([home], context)


class _Access(NamedTuple):
    """What a kubeconfig or a service account contains; certificates and key are files."""

    server: str
    authorization: str = ""
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None


class KubeConfig:
    """The merged content of kubeconfig files. ``context`` None means the current-context."""

    def __init__(self, files: list[Path], context: str | None = None) -> None:
        self._files = files
        self._context = context
        self._where = os.pathsep.join(map(str, files))
        self._builder = _CredentialsBuilder(self._where)

    async def load(self, now: datetime) -> Credentials:
        contents = [self._parsed(file) for file in self._files]
        cluster, user = self._sections(contents)
        renew_at = now + TOKEN_FILE_REREAD if "tokenFile" in user else None
        access = _plain_access(cluster, user)
        if access is None:
            access, expiry = await self._read_by_library()
            renew_at = renew_at or expiry
        return self._builder.build(access, renew_at)

    async def _read_by_library(self) -> tuple[_Access, datetime | None]:
        """The access, and when it must be renewed."""
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import ConfigException, load_kube_config

        read = Configuration(host="")
        try:
            with anyio.fail_after(LOAD_TIMEOUT_S):
                loader = await load_kube_config(
                    config_file=self._where,
                    context=self._context,
                    client_configuration=read,
                    persist_config=False,
                )
        except TimeoutError:
            raise CredentialPluginError(
                f"{self._where}: no credentials within {LOAD_TIMEOUT_S:g} s"
            ) from None
        except ConfigException as error:
            # The prefix marks a plugin that failed; another attempt may succeed.
            kind = CredentialPluginError if str(error).startswith("exec: ") else KubeConfigError
            raise kind(f"{self._where}: {one_line(error)}") from None
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise KubeConfigError(f"{self._where}: {one_line(error)}") from None
        access = _Access(
            server=str(read.host or ""),
            authorization=str(read.api_key.get("BearerToken") or ""),
            authority=read.ssl_ca_cert,
            certificate=read.cert_file,
            key=read.key_file,
            verify=read.verify_ssl,
            tls_server_name=read.tls_server_name or None,
            proxy=read.proxy or None,
        )
        expiry = getattr(loader, "exec_plugin_expiry", None)
        return access, expiry - EXPIRY_MARGIN if isinstance(expiry, datetime) else None

    def _parsed(self, file: Path) -> dict[str, Any]:
        try:
            content = yaml.safe_load(read_limited(file).decode())
        except OSError as error:
            raise KubeConfigError(f"{file}: {error.strerror or error}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise KubeConfigError(f"{file}: not YAML: {one_line(error)}") from None
        if not isinstance(content, dict):
            raise KubeConfigError(f"{file}: not a kubeconfig")
        return content

    def _sections(self, contents: list[dict[str, Any]]) -> tuple[object, dict[str, Any]]:
        """The cluster of the context, which may be invalid, and its user.

        The library accepts a context without a user.
        """
        contexts, users = _by_name(contents, "contexts"), _by_name(contents, "users")
        current = [c["current-context"] for c in contents if "current-context" in c]
        name = self._context or (current[-1] if current else None)
        if not name:
            raise KubeConfigError(f"{self._where}: no current-context; choose one with --context")
        if name not in contexts:
            known = ", ".join(sorted(contexts)) or "none"
            raise KubeConfigError(f"{self._where}: no context {name!r}; available: {known}")
        found = contexts[name].get("context")
        context = found if isinstance(found, dict) else {}
        user = context.get("user")
        if user not in users:
            raise KubeConfigError(f"{self._where}: context {name!r} has no known user: {user!r}")
        section = users[user].get("user") or {}
        if not isinstance(section, dict):
            raise KubeConfigError(f"{self._where}: user {user!r} is not a mapping")
        cluster = _by_name(contents, "clusters").get(str(context.get("cluster")), {})
        return cluster.get("cluster"), section


def _by_name(contents: list[dict[str, Any]], section: str) -> dict[str, dict[str, Any]]:
    """The named entries of all files; the first of a name counts."""
    entries: dict[str, dict[str, Any]] = {}
    for content in contents:
        listed = content.get(section)
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict) and "name" in entry:
                entries.setdefault(str(entry["name"]), entry)
    return entries


def _plain_access(cluster: object, user: dict[str, Any]) -> _Access | None:
    """The access if it needs at most a token; None leaves all else, and errors, to the library."""
    if not (isinstance(cluster, dict) and cluster.keys() <= _PLAIN_CLUSTER):
        return None
    if len(user) > 1 or not user.keys() <= _PLAIN_USER:
        return None
    server, insecure = cluster.get("server"), cluster.get("insecure-skip-tls-verify", False)
    files = [cluster.get("certificate-authority"), user.get("tokenFile")]
    if not (
        isinstance(server, str)
        and isinstance(insecure, bool)
        and isinstance(user.get("token", ""), str)
        # The library finds the file that a relative path refers to.
        and all(name is None or (os.path.isabs(name) and os.path.isfile(name)) for name in files)
    ):
        return None
    authority, token_file = files
    try:
        token = Path(token_file).read_text() if token_file else user.get("token")
    except (OSError, UnicodeDecodeError):
        return None
    authorization = f"Bearer {token}" if token else ""
    return _Access(server, authorization, authority=authority, verify=not insecure)


class ServiceAccount:
    """The service account that is mounted into the pod."""

    def __init__(self, mounted_at: Path = SERVICE_ACCOUNT_DIR) -> None:
        self._mounted_at = mounted_at
        self._where = "in-cluster configuration"
        self._builder = _CredentialsBuilder(self._where)

    async def load(self, now: datetime) -> Credentials:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        if not host or not port:
            raise KubeConfigError(f"{self._where}: service host/port is not set")
        if ":" in host:
            host = f"[{host}]"
        authorization = f"Bearer {self._read('token')}"
        self._read("ca.crt")
        authority = str(self._mounted_at / "ca.crt")
        access = _Access(f"https://{host}:{port}", authorization, authority=authority)
        return self._builder.build(access, now + TOKEN_FILE_REREAD)

    def _read(self, name: str) -> str:
        file = self._mounted_at / name
        try:
            text = file.read_text()
        except FileNotFoundError:
            raise KubeConfigError(f"{self._where}: {name} file does not exist: {file}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise KubeConfigError(f"{self._where}: {one_line(error)}") from None
        if not text:
            raise KubeConfigError(f"{self._where}: {name} file is empty: {file}")
        return text


class _CredentialsBuilder:
    """Converts what was read into credentials, with one TLS context per set of certificates.

    Connections are pooled by their context. A new one for each renewed token would cost a
    handshake per connection.
    """

    def __init__(self, where: str) -> None:
        """``where`` names the source in errors."""
        self._where = where
        self._cache_key: tuple[object, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def build(self, access: _Access, renew_at: datetime | None) -> Credentials:
        """Raises KubeConfigError."""
        server = access.server.rstrip("/")
        if not server.startswith(("http://", "https://")):
            raise KubeConfigError(
                f"{self._where}: the server must be an http or https URL, not {server!r}"
            )
        # A token that was read from a file ends with a newline.
        authorization = access.authorization.strip()
        if not authorization.isprintable():
            raise KubeConfigError(f"{self._where}: the token holds control characters")
        server, url_authorization = _split_userinfo(server)
        return Credentials(
            server=server,
            authorization=authorization or url_authorization,
            tls=self._tls_context(access) if server.startswith("https://") else None,
            tls_server_name=access.tls_server_name,
            proxy=access.proxy,
            renew_at=renew_at.astimezone(UTC) if renew_at else None,
        )

    def _tls_context(self, access: _Access) -> ssl.SSLContext:
        files = (access.authority, access.certificate, access.key)
        cache_key = (access.verify, *(self._read(file) for file in files))
        if self._context is None or cache_key != self._cache_key:
            self._context = self._create_context(access)
            self._cache_key = cache_key
        return self._context

    def _create_context(self, access: _Access) -> ssl.SSLContext:
        authority, certificate = access.authority, access.certificate
        try:
            context = client_tls_context(authority, verify=access.verify)
        except (OSError, ssl.SSLError) as error:
            raise KubeConfigError(
                f"{self._where}: certificate authority {authority}: {one_line(error)}"
            ) from None
        if certificate:
            try:
                context.load_cert_chain(certificate, access.key)
            except (OSError, ssl.SSLError) as error:
                raise KubeConfigError(
                    f"{self._where}: client certificate {certificate}: {one_line(error)}"
                ) from None
        return context

    def _read(self, file: str | None) -> bytes:
        try:
            return read_limited(Path(file)) if file else b""
        except OSError as error:
            raise KubeConfigError(f"{self._where}: {file}: {error.strerror or error}") from None


def _split_userinfo(server: str) -> tuple[str, str]:
    """The URL without user and password, and these as an Authorization header (client-go)."""
    parts = urlsplit(server)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return server, ""
    name, _, password = userinfo.partition(":")
    plain = f"{unquote(name)}:{unquote(password)}".encode()
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
    return bare, f"Basic {base64.b64encode(plain).decode()}"


def client_tls_context(ca_file: str | None, ca_data: str = "", *, verify: bool) -> ssl.SSLContext:
    """For connections to servers; without authorities the system's. Raises OSError, SSLError."""
    context = ssl.create_default_context(cafile=ca_file or None, cadata=ca_data or None)
    # Go does not enforce RFC 5280 strictly, and certificates of old tools violate it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
