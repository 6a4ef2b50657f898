"""OpenID Connect tokens of a kubeconfig. Renewals verify the certificate of the provider.

kubernetes-asyncio renews them without a check of the certificate, so anybody on the way would get
the refresh token, and fails if the kubeconfig has the authority of the provider.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes_asyncio.config import ConfigException, kube_config
from kubernetes_asyncio.config.openid import OpenIDRequestor

from asched.config.yaml import read_limited
from asched.kube.connection import client_tls_context
from asched.kube.errors import one_line

_FILE: Final = "idp-certificate-authority"
_DATA: Final = f"{_FILE}-data"


class _VerifyingRequestor(OpenIDRequestor):
    def _get_connector(self) -> aiohttp.TCPConnector:
        # The name of a file with the authority, which exists during the request.
        return aiohttp.TCPConnector(ssl=client_tls_context(self._ssl_ca_cert, verify=True))

    async def refresh_token(self, refresh_token: str) -> Any:
        """Raises ConfigException."""
        try:
            return await super().refresh_token(refresh_token)
        except (aiohttp.ClientError, OSError) as error:
            why = one_line(error)
            raise ConfigException(f"oidc: the provider does not answer: {why}") from None


def verify_providers() -> None:
    """Let the library verify the certificates of providers from now on. Idempotent."""
    kube_config.OpenIDRequestor = _VerifyingRequestor  # type: ignore[attr-defined]


def with_authority(user: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The user of a kubeconfig in ``folder``, with the authority of its provider in place of the
    file that contains it, which the library does not read. Raises OSError."""
    provider = user.get("auth-provider")
    config = provider.get("config") if isinstance(provider, dict) else None
    file = config.get(_FILE) if isinstance(config, dict) else None
    if not isinstance(provider, dict) or not isinstance(config, dict) or not file:
        return user
    if not isinstance(file, str) or config.get(_DATA):
        return user
    authority = {_DATA: base64.b64encode(read_limited(folder / file)).decode()}
    return {**user, "auth-provider": {**provider, "config": {**config, **authority}}}
