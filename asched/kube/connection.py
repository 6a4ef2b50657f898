"""Opening a connection to a cluster: its credentials, and a client that uses them.

Service accounts and kubeconfigs with a token are read here. kubernetes-asyncio reads all others:
client certificates, exec plugins, OIDC and other auth providers. Its import takes 0.3 s and 35 MB.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import anyio

from asched import __version__
from asched.config.yaml import read_limited
from asched.kube.client import ApiClient, CredentialSource, RenewingCredentials, RequestHealth
from asched.kube.errors import CredentialPluginError, KubeConfigError, one_line
from asched.kube.exec_plugin import (
    EXEC_TIMEOUT_S,
    ExecCredential,
    exec_spec,
    run_exec_plugin,
)
from asched.kube.http import HttpTransport
from asched.kube.kubeconfig import SelectedContext, read_context
from asched.kube.pool import ConnectionPool
from asched.kube.timing import Clock, RequestBudget, RetryPolicy, SystemClock
from asched.kube.transport import Credentials, ObservedTransport, RequestObserver

USER_AGENT = f"asched/{__version__}"
MAX_CONNECTIONS = 128
"""Limit for kept-alive connections; each watch has another one."""
KEEPALIVE_S = 60.0

TOKEN_FILE_REREAD = timedelta(minutes=1)
"""Lifetime of a token that was read from a file; client-go uses the same."""
EXPIRY_MARGIN = timedelta(seconds=EXEC_TIMEOUT_S)
"""How long before its expiry a token is renewed."""
LOAD_TIMEOUT_S = 30.0
"""Limit for token requests to identity providers."""
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_PLAIN_USER: Final = {"token"}
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
    pool = ConnectionPool(MAX_CONNECTIONS, KEEPALIVE_S)
    transport = HttpTransport(pool, USER_AGENT)
    credentials = RenewingCredentials(source, loaded, clock, random)
    health = RequestHealth(clock, observer)
    try:
        yield ApiClient(
            ObservedTransport(transport, health, clock),
            credentials,
            clock=clock,
            random=random,
            budget=budget,
            retry=retry or RetryPolicy(),
            health=health,
        )
    finally:
        await credentials.close()
        await transport.close()
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
        selected = read_context(self._files, self._context)
        if "exec" not in selected.user:
            return await self._credentials(selected, selected.user, now)
        returned = await self._run_plugin(selected)
        with ExitStack() as stack:
            given = self._in_files(returned.user, stack)
            replaced = {"exec", *(f"{name}-data" for name in given)}
            others = {key: value for key, value in selected.user.items() if key not in replaced}
            user = {**others, **given}
            return await self._credentials(selected, user, now, returned.expires_at)

    async def _credentials(
        self,
        selected: SelectedContext,
        user: dict[str, Any],
        now: datetime,
        expires_at: datetime | None = None,
    ) -> Credentials:
        renew_at = now + TOKEN_FILE_REREAD if "tokenFile" in user else None
        user = self._with_token(user)
        if expires_at is not None:
            renew_at = expires_at - EXPIRY_MARGIN
        access = _plain_access(selected.cluster, user)
        if access is None:
            access = await self._read_by_library(selected, user)
        return self._builder.build(access, renew_at, expires_at)

    async def _run_plugin(self, selected: SelectedContext) -> ExecCredential:
        try:
            spec = exec_spec(selected.user["exec"], selected.folder)
            return await run_exec_plugin(spec)
        except KubeConfigError as error:
            raise type(error)(f"{self._where}: {error}") from None

    def _in_files(self, returned: dict[str, str], stack: ExitStack) -> dict[str, str]:
        """What a plugin returned, with certificate and key in files that ``stack`` removes. For
        data the library creates files with each renewal, and leaves them open."""
        if "client-certificate-data" not in returned:
            return returned
        given = dict(returned)
        try:
            folder = stack.enter_context(TemporaryDirectory(prefix="asched-"))
            for name in ("client-certificate", "client-key"):
                file = Path(folder, name)
                file.write_bytes(base64.b64decode(given.pop(f"{name}-data")))
                given[name] = str(file)
        except OSError as error:
            raise KubeConfigError(f"{self._where}: {_without_value(error)}") from None
        return given

    def _with_token(self, user: dict[str, Any]) -> dict[str, Any]:
        """The user with the token in place of a file that contains it. As in client-go, ``token``
        is for the case that the file cannot be read."""
        file = user.get("tokenFile")
        if not isinstance(file, str) or not file:
            return user
        others = {key: value for key, value in user.items() if key != "tokenFile"}
        try:
            return {**others, "token": read_limited(Path(file)).decode()}
        except OSError as error:
            if others.get("token"):
                return others
            raise KubeConfigError(f"{self._where}: {file}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise KubeConfigError(f"{self._where}: {file}: not UTF-8") from None

    async def _read_by_library(self, selected: SelectedContext, user: dict[str, Any]) -> _Access:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import ConfigException, load_kube_config_from_dict

        from asched.kube.oidc import verify_providers, with_authority

        _check_provider(self._where, user)
        verify_providers()
        read = Configuration(host="")
        try:
            config = selected.as_config(with_authority(user, selected.folder))
            with anyio.fail_after(LOAD_TIMEOUT_S):
                await load_kube_config_from_dict(config, client_configuration=read)
        except TimeoutError:
            raise CredentialPluginError(
                f"{self._where}: no credentials within {LOAD_TIMEOUT_S:g} s"
            ) from None
        except ConfigException as error:
            raise KubeConfigError(f"{self._where}: {one_line(error)}") from None
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise KubeConfigError(f"{self._where}: {_without_value(error)}") from None
        return _Access(
            server=str(read.host or ""),
            authorization=str(read.api_key.get("BearerToken") or ""),
            authority=read.ssl_ca_cert,
            certificate=read.cert_file,
            key=read.key_file,
            verify=read.verify_ssl,
            tls_server_name=str(read.tls_server_name) if read.tls_server_name else None,
            proxy=str(read.proxy) if read.proxy else None,
        )


def _check_provider(where: str, user: dict[str, Any]) -> None:
    """Reject the provider gcp, which starts a command with the whole environment of the process."""
    provider = user.get("auth-provider")
    if isinstance(provider, dict) and provider.get("name") == "gcp":
        raise KubeConfigError(
            f"{where}: the auth-provider gcp was removed in Kubernetes 1.26; use exec with"
            " gke-gcloud-auth-plugin"
        )


def _without_value(error: Exception) -> str:
    """What is wrong, without a value of the kubeconfig, which may be a secret."""
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or 'cannot be read'}"
    text = one_line(error)
    # The library's own messages name keys; those of Python quote values.
    return text if text.startswith("oidc: ") else f"invalid credentials ({type(error).__name__})"


def _plain_access(cluster: object, user: dict[str, Any]) -> _Access | None:
    """The access if it needs at most a token; None leaves all else, and errors, to the library."""
    if not (isinstance(cluster, dict) and cluster.keys() <= _PLAIN_CLUSTER):
        return None
    if len(user) > 1 or not user.keys() <= _PLAIN_USER:
        return None
    server, insecure = cluster.get("server"), cluster.get("insecure-skip-tls-verify", False)
    authority, token = cluster.get("certificate-authority"), user.get("token", "")
    if not (
        isinstance(server, str)
        and isinstance(insecure, bool)
        and isinstance(token, str)
        # The library reports a file that does not exist.
        and (authority is None or (isinstance(authority, str) and os.path.isfile(authority)))
    ):
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
            text = read_limited(file).decode()
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

    def build(
        self, access: _Access, renew_at: datetime | None, expires_at: datetime | None = None
    ) -> Credentials:
        """Raises KubeConfigError."""
        server = access.server.rstrip("/")
        self._check_url("the server", server)
        if access.proxy is not None:
            self._check_url("proxy-url", access.proxy)
        if not _is_host(access.tls_server_name or "api"):
            name = access.tls_server_name
            raise KubeConfigError(f"{self._where}: tls-server-name {name!r} is not a host's name")
        # A token that was read from a file ends with a newline.
        authorization = access.authorization.strip()
        if not (authorization.isascii() and authorization.isprintable()):
            raise KubeConfigError(f"{self._where}: the token has other characters than ASCII text")
        server, url_authorization = _split_userinfo(server)
        return Credentials(
            server=server,
            authorization=authorization or url_authorization,
            tls=self._tls_context(access) if server.startswith("https://") else None,
            tls_server_name=access.tls_server_name,
            proxy=access.proxy,
            renew_at=renew_at.astimezone(UTC) if renew_at else None,
            expires_at=expires_at.astimezone(UTC) if expires_at else None,
        )

    def _check_url(self, what: str, url: str) -> None:
        if not _is_http_url(url):
            shown = url.rpartition("@")[2]  # without a password
            raise KubeConfigError(
                f"{self._where}: {what} must be an http or https URL, not {shown!r}"
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


def _is_http_url(server: str) -> bool:
    """Whether requests can be sent there: a port has to be a number, for instance."""
    try:
        parts = urlsplit(server)
        valid = parts.port != 0 and _is_host(parts.hostname or "")
    except ValueError:
        return False
    return valid and server.isascii() and parts.scheme in ("http", "https")


def _is_host(name: str) -> bool:
    """Whether it can be looked up, and be the name in a certificate."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


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
