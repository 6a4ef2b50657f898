"""Connects to PostgreSQL with TLS as the server's address requires.

The driver's default accepts any certificate, and a connection without TLS. Connections that may
leave the machine are verified against the system's authorities, unless the URL has ``ssl=``
(``disable``, or ``verify-full`` with ``PGSSLROOTCERT``). The address is the one that the driver
uses: the URL's host, its parameter ``host``, a service, or ``PGHOST``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

import asyncpg

_INDIRECT: Final = ("dsn", "service", "servicefile")
"""Settings that name the server in a way that only the driver resolves."""


async def connect_verified(*args: Any, **settings: Any) -> Any:
    """``asyncpg.connect`` with verified TLS where it is required."""
    return await asyncpg.connect(*args, **settings, **tls_arguments(settings))


def tls_arguments(
    settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> dict[str, ssl.SSLContext]:
    """The TLS arguments to add to the driver's connection settings."""
    if settings.get("ssl") is not None or _is_local(settings, environ):
        return {}
    # The driver ignores it for a Unix socket.
    return {"ssl": ssl.create_default_context()}


def _is_local(settings: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether a connection cannot leave the machine."""
    named = settings.get("host")
    if not named:
        if any(settings.get(name) for name in _INDIRECT) or environ.get("PGSERVICE"):
            return False
        named = environ.get("PGHOST", "")
    hosts = named.split(",") if isinstance(named, str) else named
    # Without any host the driver tries Unix sockets and localhost.
    return all(_is_local_host(str(host)) for host in hosts if host)


def _is_local_host(host: str) -> bool:
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
