"""URLs as Go's net/url reads them."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from asched.cel.values import register_type

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)
_PORT = re.compile(r":[0-9]*", re.ASCII)
_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2}).{0,2}", re.DOTALL)
_USER = re.compile(r"[A-Za-z0-9._:~!$&'()*+,;=%@-]*", re.ASCII)
_HOST_SIGNS = frozenset("!$&'()*+,;=:[]<>\"-_.~")
_UNRESERVED = frozenset((string.ascii_letters + string.digits + "-_.~$&+,/:;=@").encode())
_RAW_SIGNS = frozenset("!$&'()*+,;=:@[]/-_.~%")


@dataclass(frozen=True, slots=True)
class URLValue:
    """A parsed URL."""

    scheme: str
    host: str
    path: str
    query: str
    text: str

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        host = self.host
        if host.startswith("[") and "]" in host:
            return host[1 : host.rindex("]")]
        name, colon, port = host.rpartition(":")
        return name if colon and (not port or port.isdigit()) else host

    @property
    def port(self) -> str:
        """The port, or nothing."""
        host = self.host
        if host.startswith("["):
            rest = host[host.rindex("]") + 1 :] if "]" in host else ""
            return rest[1:] if rest.startswith(":") else ""
        _, colon, port = host.rpartition(":")
        return port if colon and port.isdigit() else ""

    @property
    def escaped_path(self) -> str:
        """The path as it was written, if that is a valid form, or escaped."""
        if all(_is_plain(character) or character in _RAW_SIGNS for character in self.path):
            return self.path
        return escape_path(unquote_to_bytes(self.path))

    def query_values(self) -> dict[str, list[str]]:
        """Names and values of the query; malformed pairs are left out."""
        values: dict[str, list[str]] = {}
        for pair in self.query.split("&"):
            if not pair or ";" in pair:
                continue
            name, _, value = pair.partition("=")
            if _ESCAPE.search(name) or _ESCAPE.search(value):
                continue
            values.setdefault(_unescape(name), []).append(_unescape(value))
        return values


register_type(URLValue, "kubernetes.URL")


def escape_path(raw: bytes) -> str:
    """Bytes of a path with everything escaped that Go escapes."""
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in raw)


def _is_plain(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _unescape(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def parse_url(text: str) -> URLValue:
    """Reads an absolute URL or path. Raises ValueError with Go's text."""
    try:
        return _parse(text)
    except ValueError as error:
        quoted = json.dumps(text, ensure_ascii=False)
        raise ValueError(f"parse {quoted}: {error}") from None


def _parse(text: str) -> URLValue:
    if any(ord(character) < 0x20 or character == "\x7f" for character in text):
        raise ValueError("net/url: invalid control character in URL")
    if not text:
        raise ValueError("empty url")
    if text == "*":
        return URLValue("", "", "*", "", text)
    scheme, rest = _split_scheme(text)
    rest = rest.partition("#")[0] if "#" in rest else rest
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return URLValue(scheme, "", "", query, text)
        raise ValueError("invalid URI for request")
    host = ""
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        host = _host(authority)
        rest = slash + path
    found = _ESCAPE.search(rest)
    if found is not None:
        raise ValueError(f"invalid URL escape {json.dumps(found.group())}")
    return URLValue(scheme, host, rest, query, text)


def _split_scheme(text: str) -> tuple[str, str]:
    head, colon, rest = text.partition(":")
    if not colon:
        return "", text
    if not head:
        raise ValueError("missing protocol scheme")
    if _SCHEME.fullmatch(head):
        return head.lower(), rest
    return "", text


def _host(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and _USER.fullmatch(user) is None:
        raise ValueError("net/url: invalid userinfo")
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            raise ValueError("missing ']' in host")
        port = host[end + 1 :]
    else:
        colon = host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if port and _PORT.fullmatch(port) is None:
        raise ValueError(f"invalid port {json.dumps(port)} after host")
    for character in host:
        is_plain = ord(character) >= 0x80 or character.isalnum() or character in _HOST_SIGNS
        if not is_plain and character != "%":
            raise ValueError(f"invalid character {json.dumps(character)} in host name")
    found = _ESCAPE.search(host)
    if found is not None or "%" in host:
        return _escaped_host(host)
    return host


def _escaped_host(host: str) -> str:
    """Only bytes outside of ASCII and the zone of an address may be escaped."""
    found = _ESCAPE.search(host)
    if found is not None:
        raise ValueError(f"invalid URL escape {json.dumps(found.group())}")
    if host.startswith("["):
        return unquote_to_bytes(host).decode("utf-8", "replace")
    for match in re.finditer(r"%([0-9a-fA-F]{2})", host):
        if int(match[1], 16) < 0x80:
            raise ValueError(f"invalid URL escape {json.dumps(match.group())}")
    return unquote_to_bytes(host).decode("utf-8", "replace")
