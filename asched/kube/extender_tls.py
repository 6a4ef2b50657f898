"""TLS with extenders: ``tlsConfig`` and ``enableHTTPS`` as client-go reads them."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from asched.framework.config import Extender, ExtenderTLS
from asched.framework.extenders import shown_url
from asched.kube.errors import KubeConfigError


class TlsSettings(NamedTuple):
    """How to speak TLS with one extender."""

    context: ssl.SSLContext
    server_name: str | None
    """What its certificate is checked against; None for the host of the URL."""


def tls_settings(extender: Extender) -> TlsSettings | None:
    """None where the system's own certificates will do.

    Only ``insecure`` leaves certificates unverified. (In kube-scheduler so does ``enableHTTPS`` with no
    certificate authority.) Data takes precedence over files. Raises :class:`KubeConfigError`.
    """
    tls = extender.tls_config or ExtenderTLS()
    has_ca = bool(tls.ca_file or tls.ca_data)
    if tls == ExtenderTLS():
        return None
    where = f"extender {shown_url(extender.url_prefix)}"
    if tls.insecure and has_ca:
        raise KubeConfigError(f"{where}: a certificate authority and insecure exclude each other")
    try:
        context = _context(tls)
    except (OSError, ValueError) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        files = [file for file in (tls.ca_file, tls.cert_file, tls.key_file) if file]
        if files:
            # Of certificate files the system says what is wrong, but not with which.
            what += f" ({', '.join(files)})"
        raise KubeConfigError(f"{where}: tlsConfig: {what}") from None
    return TlsSettings(context, tls.server_name or None)


def _context(tls: ExtenderTLS) -> ssl.SSLContext:
    if tls.ca_data:
        context = ssl.create_default_context(cadata=tls.ca_data.decode())
    else:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    # Go does not ask for RFC 5280's letter, and authorities made by old tools would fail under it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    has_cert, has_key = bool(tls.cert_data or tls.cert_file), bool(tls.key_data or tls.key_file)
    if has_cert != has_key:
        raise ValueError("a client certificate needs its key, and a key its certificate")
    if has_cert:
        with (
            _as_file(tls.cert_data, tls.cert_file) as cert,
            _as_file(tls.key_data, tls.key_file) as key,
        ):
            context.load_cert_chain(cert, key)
    return context


@contextmanager
def _as_file(data: bytes, file: str) -> Iterator[str]:
    """A file with ``data``, readable by nobody else, for as long as the block; else ``file``."""
    if not data:
        yield file
        return
    handle, path = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as written:
            written.write(data)
        yield path
    finally:
        os.unlink(path)
