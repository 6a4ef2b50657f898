"""Who we are to the API server, and where it is: kubeconfig or the pod's service account.

kubernetes-asyncio reads the configuration and runs exec plugins; here that becomes one value which
is loaded anew when it may have expired.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from asched.kube.errors import KubeConfigError

TOKEN_FILE_REREAD = timedelta(minutes=1)
"""How long a token that lives in a file is believed; client-go rereads as often."""
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXPIRY_MARGIN = timedelta(seconds=30)
"""A token is renewed this long before it expires."""


_load_in_cluster: Callable[..., None] = load_incluster_config


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
        user = self._check()
        configuration = Configuration()
        try:
            loader = await load_kube_config(
                config_file=str(self._path),
                context=self._context,
                client_configuration=configuration,
                persist_config=False,
            )
        except (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise KubeConfigError(f"{self._path}: {_one_line(error)}") from None
        renew_at: datetime | None = None
        expiry = getattr(loader, "exec_plugin_expiry", None)
        if isinstance(expiry, datetime):
            renew_at = expiry - EXPIRY_MARGIN
        elif "tokenFile" in user:
            renew_at = now + TOKEN_FILE_REREAD
        return _credentials(configuration, renew_at, str(self._path), self._tls)

    def _check(self) -> dict[str, Any]:
        """The user entry in force. Says clearly what the loader would say obscurely."""
        try:
            text = self._path.read_text(encoding="utf-8")
            content = yaml.safe_load(text)
        except OSError as error:
            raise KubeConfigError(f"{self._path}: {error.strerror or error}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
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
        if chosen.get("cluster") not in _by_name(content, "clusters"):
            raise KubeConfigError(
                f"{self._path}: context {name!r} names no known cluster: {chosen.get('cluster')!r}"
            )
        users = _by_name(content, "users")
        if chosen.get("user") not in users:
            raise KubeConfigError(
                f"{self._path}: context {name!r} names no known user: {chosen.get('user')!r}"
            )
        return users[chosen["user"]].get("user") or {}


class ServiceAccount:
    """The service account mounted into the pod this runs in."""

    def __init__(self, mounted_at: Path = SERVICE_ACCOUNT_DIR) -> None:
        self._mounted_at = mounted_at
        self._tls = _TlsContexts()

    async def load(self, now: datetime) -> Credentials:
        configuration = Configuration()
        try:
            _load_in_cluster(
                client_configuration=configuration,
                try_refresh_token=False,
                token_filename=str(self._mounted_at / "token"),
                cert_filename=str(self._mounted_at / "ca.crt"),
            )
        except (ConfigException, OSError, ValueError) as error:
            raise KubeConfigError(f"in-cluster configuration: {_one_line(error)}") from None
        return _credentials(
            configuration, now + TOKEN_FILE_REREAD, "in-cluster configuration", self._tls
        )


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


class _TlsContexts:
    """Makes TLS contexts, and the same one again for the same certificates.

    Connections are pooled by their context, so a new one for each renewed token would cost a
    handshake a connection.
    """

    def __init__(self) -> None:
        self._made_from: tuple[object, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def get(self, configuration: Configuration, where: str) -> ssl.SSLContext:
        files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        made_from = (configuration.verify_ssl, *(_content(file, where) for file in files))
        if self._context is None or made_from != self._made_from:
            self._context = _tls(configuration, where)
            self._made_from = made_from
        return self._context


def _content(file: str | None, where: str) -> bytes:
    try:
        return Path(file).read_bytes() if file else b""
    except OSError as error:
        raise KubeConfigError(f"{where}: {file}: {error.strerror or error}") from None


def _credentials(
    configuration: Configuration, renew_at: datetime | None, where: str, contexts: _TlsContexts
) -> Credentials:
    server = str(configuration.host or "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeConfigError(f"{where}: the server must be an http or https URL, not {server!r}")
    # A token read from a file ends in a newline.
    token = str(configuration.api_key.get("BearerToken") or "").strip()
    if not token.isprintable():
        raise KubeConfigError(f"{where}: the token holds what no header may hold")
    return Credentials(
        server=server,
        authorization=token,
        tls=contexts.get(configuration, where) if server.startswith("https://") else None,
        tls_server_name=getattr(configuration, "tls_server_name", None) or None,
        proxy=getattr(configuration, "proxy", None) or None,
        renew_at=renew_at.astimezone(UTC) if renew_at else None,
    )


def _tls(configuration: Configuration, where: str) -> ssl.SSLContext:
    authority = configuration.ssl_ca_cert or None
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise KubeConfigError(
            f"{where}: certificate authority {authority}: {_one_line(error)}"
        ) from None
    # Go does not ask for RFC 5280's letter, and authorities made by old tools would fail under it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        try:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        except (OSError, ssl.SSLError) as error:
            raise KubeConfigError(
                f"{where}: client certificate {configuration.cert_file}: {_one_line(error)}"
            ) from None
    return context


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
