"""Requests through a proxy, by aiohttp."""

from __future__ import annotations

import base64

import aiohttp
import yarl

from asched.kube.errors import NoResponseError, ResponseTooLargeError
from asched.kube.pool import CONNECT_TIMEOUT_S, describe
from asched.kube.response_parser import BODY_LIMIT_BYTES
from asched.kube.streams import enable_keepalive
from asched.kube.transport import ApiRequest, Credentials, HttpResponse, Transport


class _AiohttpResponse:
    """A :class:`~asched.kube.transport.StreamingResponse`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponseError(describe(error), sent=True) from None

    async def read_all(self) -> HttpResponse:
        body = bytearray()
        try:
            async for piece in self._response.content.iter_any():
                body += piece
                if len(body) > BODY_LIMIT_BYTES:
                    raise ResponseTooLargeError(BODY_LIMIT_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponseError(describe(error), sent=True) from None
        finally:
            self.release()
        retry_after = self._response.headers.get("Retry-After")
        return HttpResponse(self.status, bytes(body), retry_after, reusable=True)

    def release(self) -> None:
        # aiohttp closes the connection if the body was not read to its end.
        self._response.release()


def _proxy_authorization(proxy: yarl.URL) -> dict[str, str]:
    if proxy.user is None:
        return {}
    plain = f"{proxy.user}:{proxy.password or ''}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(plain).decode()}"}


class ProxyTransport(Transport):
    """For credentials with a proxy."""

    def __init__(self, user_agent: str, connections: int, keepalive_s: float) -> None:
        """``connections``: the limit. The caller closes it."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=keepalive_s),
            headers={"User-Agent": user_agent, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def exchange(self, credentials: Credentials, request: ApiRequest) -> HttpResponse:
        return await (await self.open(credentials, request)).read_all()

    async def open(self, credentials: Credentials, request: ApiRequest) -> _AiohttpResponse:
        headers = {"Accept": request.accept}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        # Errors show the URL of the proxy, so the password is not in it.
        proxy = yarl.URL(credentials.proxy or "")
        of_proxy = _proxy_authorization(proxy)
        if not credentials.server.startswith("https:"):  # the proxy reads the request itself
            headers |= of_proxy
        limits = aiohttp.ClientTimeout(
            total=request.timeout_s, sock_connect=min(request.timeout_s, CONNECT_TIMEOUT_S)
        )
        try:
            response = await self._session.request(
                request.method,
                credentials.server + request.path,
                params=request.params,
                data=request.body,
                headers=headers,
                timeout=limits,
                ssl=credentials.tls if credentials.tls is not None else True,
                server_hostname=credentials.tls_server_name,
                proxy=proxy.with_user(None),
                proxy_headers=of_proxy,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NoResponseError(describe(error), sent=False) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoResponseError(describe(error), sent=True) from None
        if response.connection is not None and response.connection.transport is not None:
            enable_keepalive(response.connection.transport)
        return _AiohttpResponse(response)
