"""IP addresses and networks, and URLs as Go's net/url reads them."""

from __future__ import annotations

import ipaddress
import json
import re
import string
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import unquote_to_bytes

from asched.cel.values import register_type

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class IPValue:
    """An address."""

    address: Address

    @property
    def byte_size(self) -> int:
        """Size for costs."""
        return self.address.max_prefixlen // 8

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class CIDRValue:
    """A network. Its address may have bits outside of the prefix."""

    address: Address
    prefix_length: int

    @property
    def byte_size(self) -> int:
        """Size for costs."""
        return -(-self.prefix_length // 8)

    @property
    def network_bits(self) -> int:
        """The bits of the address that belong to the prefix."""
        shift = self.address.max_prefixlen - self.prefix_length
        return int(self.address) >> shift << shift

    def contains(self, address: Address) -> bool:
        """Whether the address is inside."""
        if address.version != self.address.version:
            return False
        shift = self.address.max_prefixlen - self.prefix_length
        return int(address) >> shift == int(self.address) >> shift

    def contains_network(self, other: CIDRValue) -> bool:
        """Whether all addresses of the other network are inside."""
        return self.prefix_length <= other.prefix_length and self.contains(other.address)

    def masked(self) -> CIDRValue:
        """The network without the bits outside of the prefix."""
        return CIDRValue(type(self.address)(self.network_bits), self.prefix_length)

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix_length}"


_FIELDS_V6 = 8
_HEX_DIGITS = re.compile(r"[0-9a-fA-F]+", re.ASCII)

register_type(IPValue, "net.IP")
register_type(CIDRValue, "net.CIDR")


def parse_ip(text: str) -> IPValue:
    """Reads an address. Raises ValueError."""
    quoted = json.dumps(text, ensure_ascii=False)
    try:
        address = _address(text)
    except ValueError as error:
        raise ValueError(
            f"IP Address {quoted} parse error during conversion from string: {error}"
        ) from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise ValueError(f"IP address {quoted} with zone value is not allowed")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {quoted} is not allowed")
    return IPValue(address)


def parse_cidr(text: str) -> CIDRValue:
    """Reads a network. Raises ValueError."""
    quoted = json.dumps(text, ensure_ascii=False)
    where = f"netip.ParsePrefix({quoted})"
    head, slash, length = text.rpartition("/")
    problem = ""
    address: Address | None = None
    if not slash:
        problem = "no '/'"
    else:
        try:
            address = _address(head)
        except ValueError as error:
            problem = str(error)
    if address is not None:
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            problem = "IPv6 zones cannot be present in a prefix"
        elif not (length.isascii() and length.isdigit()) or (len(length) > 1 and length[0] == "0"):
            problem = f"bad bits after slash: {json.dumps(length)}"
        elif len(length) > 3 or int(length) > address.max_prefixlen:
            problem = "prefix length out of range"
    if problem or address is None:
        raise ValueError(
            f"network address parse error during conversion from string: {where}: {problem}"
        )
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {quoted} is not allowed")
    return CIDRValue(address, int(length))


def is_global_unicast(address: Address) -> bool:
    """Whether the address is unicast and neither local to a host nor to a link."""
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or is_link_local_unicast(address)
        or address == IPv4Address("255.255.255.255")
    )


def is_link_local_unicast(address: Address) -> bool:
    """Whether the address is in 169.254.0.0/16 or fe80::/10."""
    if isinstance(address, IPv4Address):
        return int(address) >> 16 == 0xA9FE
    return int(address) >> 118 == 0x3FA


def is_link_local_multicast(address: Address) -> bool:
    """Whether the address is in 224.0.0.0/24 or has multicast scope 2."""
    if isinstance(address, IPv4Address):
        return int(address) >> 8 == 0xE00000
    return int(address) >> 120 == 0xFF and int(address) >> 112 & 0xF == 2


def _address(text: str) -> Address:
    where = f"ParseAddr({json.dumps(text, ensure_ascii=False)}): "
    for character in text:
        if character == ".":
            return _address_v4(text, where)
        if character == ":":
            try:
                return ipaddress.IPv6Address(text)
            except ValueError:
                raise ValueError(f"{where}{_problem_v6(text)}") from None
        if character == "%":
            raise ValueError(f"{where}missing IPv6 address")
    raise ValueError(f"{where}unable to parse IP")


def _address_v4(text: str, where: str) -> IPv4Address:
    for index, character in enumerate(text):
        if character != "." and not (character.isascii() and character.isdigit()):
            rest = json.dumps(text[index:], ensure_ascii=False)
            raise ValueError(f"{where}unexpected character (at {rest})")
    fields = text.split(".")
    if "" in fields:
        raise ValueError(f"{where}IPv4 field must have at least one digit")
    for field in fields[:4]:
        if len(field) > 1 and field[0] == "0":
            raise ValueError(f"{where}IPv4 field has octet with leading zero")
        if len(field) > 3 or int(field) > 255:
            raise ValueError(f"{where}IPv4 field has value >255")
    if len(fields) != 4:
        problem = "too short" if len(fields) < 4 else "too long"
        raise ValueError(f"{where}IPv4 address {problem}")
    return IPv4Address(text)


def _problem_v6(text: str) -> str:
    """Why an IPv6 address is none, with the words of Go."""
    address, percent, zone = text.partition("%")
    if percent and not zone:
        return "zone must be a non-empty string"
    is_short = address.startswith("::")
    rest, fields = (address[2:] if is_short else address), 0
    while rest and fields < _FIELDS_V6:
        digits = _HEX_DIGITS.match(rest)
        length = 0 if digits is None else digits.end()
        after = rest[length:]
        if length == 0:
            return _at("each colon-separated field must have at least one digit", rest)
        if length > 4:
            return _at("each group must have 4 or fewer digits", rest)
        if after.startswith("."):
            return _problem_of_embedded_v4(rest, fields, is_short=is_short)
        fields += 1
        if after and not after.startswith(":"):
            return _at("unexpected character, want colon", after)
        if after == ":":
            return _at("colon must be followed by more characters", after)
        rest = after[1:]
        if rest.startswith(":"):
            if is_short:
                return _at("multiple :: in address", rest)
            is_short, rest = True, rest[1:]
    if rest:
        return _at("trailing garbage after address", rest)
    if is_short:
        return "the :: must expand to at least one field of zeros"
    return "address string too short"


def _problem_of_embedded_v4(rest: str, fields: int, *, is_short: bool) -> str:
    if not is_short and fields != _FIELDS_V6 - 2:
        problem = "embedded IPv4 address must replace the final 2 fields of the address"
        return _at(problem, rest)
    if fields > _FIELDS_V6 - 2:
        problem = "too many hex fields to fit an embedded IPv4 at the end of the address"
        return _at(problem, rest)
    try:
        _address_v4(rest, "")
    except ValueError as error:
        return str(error)
    return "the :: must expand to at least one field of zeros"


def _at(problem: str, rest: str) -> str:
    return f"{problem} (at {json.dumps(rest, ensure_ascii=False)})"


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
