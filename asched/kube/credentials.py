"""Who we are to the API server, and where it is: kubeconfig or the pod's service account.

Here that becomes one value which is loaded anew when it may have expired. What a kubeconfig says in
plain words (tokens, certificates) is read here; exec plugins and auth providers are left to
kubernetes-asyncio, which is imported for them alone: it takes a third of a second and 25 MB.
"""

from __future__ import annotations

import base64
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import yaml

from asched.config.yaml import read_limited
from asched.kube.errors import CredentialPluginError, KubeConfigError

TOKEN_FILE_REREAD = timedelta(minutes=1)
"""How long a token that lives in a file is believed; client-go rereads as often."""
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXPIRY_MARGIN = timedelta(seconds=30)
"""A token is renewed this long before it expires."""
_LIBRARY_ONLY = frozenset({"exec", "auth-provider"})
"""Ways of a user to authenticate that kubernetes-asyncio carries out."""


class Credentials(msgspec.Struct, frozen=True):
    """Everything a request needs besides its path."""

    server: str
    """Scheme, host, port and path prefix, without a slash at the end."""
    authorization: str = ""
    """The value of the Authorization header; empty with a client certificate."""
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    renew_at: datetime | None = None
    """When to load again; None if only a 401 is a reason to."""


class CredentialSource(Protocol):
    """Loads credentials, again and again."""

    async def load(self, now: datetime) -> Credentials:
        """Raises KubeConfigError."""


class FixedCredentials:
    """Credentials that never change."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def load(self, now: datetime) -> Credentials:
        return self._credentials


class KubeConfigFile:
    """A kubeconfig. ``context`` None means its current-context."""

    def __init__(self, path: Path, context: str | None = None) -> None:
        self._path = path
        self._context = context
        self._tls = _TlsContexts()

    async def load(self, now: datetime) -> Credentials:
        cluster, user = self._check()
        where = str(self._path)
        if _LIBRARY_ONLY & user.keys():
            access, expiry = await _by_library(self._path, self._context)
            renew_at = expiry - EXPIRY_MARGIN if expiry is not None else None
            return _credentials(access, renew_at, where, self._tls)
        renew_at = now + TOKEN_FILE_REREAD if "tokenFile" in user else None
        # A TLS context takes a client's certificate from files only, and has read them by the end.
        with TemporaryDirectory() as folder:
            access = _plain_access(cluster, user, self._path, Path(folder))
            return _credentials(access, renew_at, where, self._tls)

    def _check(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The cluster and the user in force."""
        try:
            content = yaml.safe_load(read_limited(self._path).decode())
        except OSError as error:
            raise KubeConfigError(f"{self._path}: {error.strerror or error}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise KubeConfigError(f"{self._path}: not YAML: {_one_line(error)}") from None
        if not isinstance(content, dict):
            raise KubeConfigError(f"{self._path}: not a kubeconfig")
        contexts = _by_name(content, "contexts")
        name = self._context or content.get("current-context")
        if not name:
            raise KubeConfigError(f"{self._path}: no current-context; choose one with --context")
        if name not in contexts:
            there = ", ".join(sorted(contexts)) or "none"
            raise KubeConfigError(f"{self._path}: no context {name!r}; there is: {there}")
        chosen = contexts[name].get("context") or {}
        clusters = _by_name(content, "clusters")
        if chosen.get("cluster") not in clusters:
            raise KubeConfigError(
                f"{self._path}: context {name!r} names no known cluster: {chosen.get('cluster')!r}"
            )
        users = _by_name(content, "users")
        if chosen.get("user") not in users:
            raise KubeConfigError(
                f"{self._path}: context {name!r} names no known user: {chosen.get('user')!r}"
            )
        cluster = clusters[chosen["cluster"]].get("cluster")
        if not isinstance(cluster, dict):
            raise KubeConfigError(f"{self._path}: Expected key cluster in {chosen['cluster']!r}")
        user = users[chosen["user"]].get("user") or {}
        if not isinstance(user, dict):
            raise KubeConfigError(f"{self._path}: user {chosen['user']!r} is no mapping")
        return cluster, user


class ServiceAccount:
    """The service account mounted into the pod this runs in."""

    def __init__(self, mounted_at: Path = SERVICE_ACCOUNT_DIR) -> None:
        self._mounted_at = mounted_at
        self._tls = _TlsContexts()

    async def load(self, now: datetime) -> Credentials:
        where = "in-cluster configuration"
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise KubeConfigError(f"{where}: Service host/port is not set")
        token, authority = self._mounted_at / "token", self._mounted_at / "ca.crt"
        if not token.is_file():
            raise KubeConfigError(f"{where}: Service token file does not exist")
        if not authority.is_file():
            raise KubeConfigError(f"{where}: Service certification file does not exist")
        access = _Access(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            token=_content(str(token), where).decode(errors="replace"),
            authority_file=str(authority),
        )
        return _credentials(access, now + TOKEN_FILE_REREAD, where, self._tls)


def find_credentials(kubeconfig: Path | None, context: str | None) -> CredentialSource:
    """``kubeconfig`` if given, else $KUBECONFIG, else the pod's service account, else
    ``~/.kube/config``: the order of kubectl, with the pod before the home directory. Of several
    files in $KUBECONFIG the first that exists is taken.

    Raises KubeConfigError where there is none of them.
    """
    if kubeconfig is not None:
        return KubeConfigFile(kubeconfig.expanduser(), context)
    if named := os.environ.get("KUBECONFIG", "").strip(os.pathsep):
        files = [Path(name).expanduser() for name in named.split(os.pathsep) if name]
        return KubeConfigFile(next(filter(Path.exists, files), files[0]), context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        if context is not None:
            raise KubeConfigError("a context needs a kubeconfig; there is none in a cluster")
        return ServiceAccount()
    home = Path.home() / ".kube" / "config"
    if not home.is_file():
        raise KubeConfigError(
            f"no cluster: give --kubeconfig, set KUBECONFIG, or have {home}, or run in a cluster"
        )
    return KubeConfigFile(home, context)


def _by_name(content: dict[str, Any], section: str) -> dict[str, dict[str, Any]]:
    entries = content.get(section) or []
    if not isinstance(entries, list):
        return {}
    return {str(e["name"]): e for e in entries if isinstance(e, dict) and "name" in e}


class _Access(msgspec.Struct, frozen=True):
    """What a configuration says, in the form that TLS takes it."""

    server: str
    token: str = ""
    authority_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None


def _plain_access(
    cluster: dict[str, Any], user: dict[str, Any], path: Path, folder: Path
) -> _Access:
    """``folder`` takes what the kubeconfig holds itself and TLS needs as files."""
    where = str(path)

    def file_of(section: dict[str, Any], name: str) -> str | None:
        data = section.get(f"{name}-data")
        if data:
            try:
                content = base64.b64decode(str(data))
            except ValueError as error:
                raise KubeConfigError(
                    f"{where}: {name.replace('-', ' ')}: {_one_line(error)}"
                ) from None
            file = folder / name
            file.write_bytes(content)
            return str(file)
        named = section.get(name)
        return str(path.parent / str(named)) if named else None

    token = str(user.get("token") or "")
    if not token and user.get("tokenFile"):
        token = _content(str(path.parent / str(user["tokenFile"])), where).decode(errors="replace")
    return _Access(
        server=str(cluster.get("server") or ""),
        token=token,
        authority_file=file_of(cluster, "certificate-authority"),
        certificate_file=file_of(user, "client-certificate"),
        key_file=file_of(user, "client-key"),
        verify=not cluster.get("insecure-skip-tls-verify"),
        tls_server_name=cluster.get("tls-server-name") or None,
        proxy=cluster.get("proxy-url") or None,
    )


async def _by_library(path: Path, context: str | None) -> tuple[_Access, datetime | None]:
    """With it, when what an exec plugin gave expires."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException, load_kube_config

    found = Configuration()
    try:
        loader = await load_kube_config(
            config_file=str(path), context=context, client_configuration=found, persist_config=False
        )
    except ConfigException as error:
        # Said by the library when it ran the program, and it did not answer as it should.
        kind = CredentialPluginError if str(error).startswith("exec: ") else KubeConfigError
        raise kind(f"{path}: {_one_line(error)}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise KubeConfigError(f"{path}: {_one_line(error)}") from None
    expiry = getattr(loader, "exec_plugin_expiry", None)
    access = _Access(
        server=str(found.host or ""),
        token=str(found.api_key.get("BearerToken") or "").strip().removeprefix("Bearer "),
        authority_file=found.ssl_ca_cert or None,
        certificate_file=found.cert_file or None,
        key_file=found.key_file or None,
        verify=bool(found.verify_ssl),
        tls_server_name=getattr(found, "tls_server_name", None) or None,
        proxy=getattr(found, "proxy", None) or None,
    )
    return access, expiry if isinstance(expiry, datetime) else None


class _TlsContexts:
    """Makes TLS contexts, and the same one again for the same certificates.

    Connections are pooled by their context, so a new one for each renewed token would cost a
    handshake a connection.
    """

    def __init__(self) -> None:
        self._made_from: tuple[object, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def get(self, access: _Access, where: str) -> ssl.SSLContext:
        files = (access.authority_file, access.certificate_file, access.key_file)
        made_from = (access.verify, *(_content(file, where) for file in files))
        if self._context is None or made_from != self._made_from:
            self._context = _tls(access, where)
            self._made_from = made_from
        return self._context


def _content(file: str | None, where: str) -> bytes:
    try:
        return read_limited(Path(file)) if file else b""
    except OSError as error:
        raise KubeConfigError(f"{where}: {file}: {error.strerror or error}") from None


def _credentials(
    access: _Access, renew_at: datetime | None, where: str, contexts: _TlsContexts
) -> Credentials:
    server = access.server.rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeConfigError(f"{where}: the server must be an http or https URL, not {server!r}")
    # A token read from a file ends in a newline.
    token = access.token.strip()
    if not token.isprintable():
        raise KubeConfigError(f"{where}: the token holds what no header may hold")
    server, of_url = _without_user(server)
    return Credentials(
        server=server,
        authorization=f"Bearer {token}" if token else of_url,
        tls=contexts.get(access, where) if server.startswith("https://") else None,
        tls_server_name=access.tls_server_name,
        proxy=access.proxy,
        renew_at=renew_at.astimezone(UTC) if renew_at else None,
    )


def _without_user(server: str) -> tuple[str, str]:
    """The URL without a user in it, and that user as an Authorization header, as HTTP clients (and
    client-go's) make it of one. kubectl keeps tokens from plain http, but not this."""
    parts = urlsplit(server)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return server, ""
    name, _, password = user.partition(":")
    plain = f"{unquote(name)}:{unquote(password)}".encode()
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, f"Basic {base64.b64encode(plain).decode()}"


def _tls(access: _Access, where: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.authority_file)
    except (OSError, ssl.SSLError) as error:
        raise KubeConfigError(
            f"{where}: certificate authority {access.authority_file}: {_one_line(error)}"
        ) from None
    # Go does not ask for RFC 5280's letter, and authorities made by old tools would fail under it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate_file:
        try:
            context.load_cert_chain(access.certificate_file, access.key_file)
        except (OSError, ssl.SSLError) as error:
            raise KubeConfigError(
                f"{where}: client certificate {access.certificate_file}: {_one_line(error)}"
            ) from None
    return context


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
