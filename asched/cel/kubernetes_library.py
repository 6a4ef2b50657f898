"""Functions that Kubernetes adds: quantities, versions, addresses, URLs and formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from asched.cel.addresses import (
    CIDRValue,
    IPValue,
    URLValue,
    is_global_unicast,
    is_link_local_multicast,
    is_link_local_unicast,
    parse_cidr,
    parse_ip,
    parse_url,
)
from asched.cel.errors import SubexpressionError, no_overload
from asched.cel.functions import Implementation, Library
from asched.cel.kubernetes_scalars import Quantity, Version, parse_quantity
from asched.cel.named_formats import FORMATS, NamedFormat
from asched.cel.values import ABSENT, CelMap, Meter, Optional, Value

CACHED_TEXTS: Final = 256


def _parsing(parse: Callable[[str], Value], prefix: str = "") -> Implementation:
    # Most texts are constants of expressions.
    cached = lru_cache(maxsize=CACHED_TEXTS)(parse)

    def evaluate(_: Meter, text: str) -> Value:
        try:
            return cached(text)
        except ValueError as error:
            raise SubexpressionError(f"{prefix}{error}") from None

    return evaluate


def _testing(parse: Callable[[str], Value]) -> Implementation:
    def evaluate(_: Meter, text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return evaluate


@lru_cache(maxsize=CACHED_TEXTS)
def _version(text: str, normalize: bool) -> Version:
    return Version.parse_normalized(text) if normalize else Version.parse(text)


def _to_version(_: Meter, text: str, normalize: bool = False) -> Version:
    try:
        return _version(text, normalize)
    except ValueError as error:
        raise SubexpressionError(str(error)) from None


def _is_version(_: Meter, text: str, normalize: bool = False) -> bool:
    try:
        _version(text, normalize)
    except ValueError:
        return False
    return True


def _order(_: Meter, left: Quantity | Version, right: Value) -> int:
    return left.compare(right)  # type: ignore[arg-type]


def _is_greater(_: Meter, left: Quantity | Version, right: Value) -> bool:
    return left.compare(right) > 0  # type: ignore[arg-type]


def _is_less(_: Meter, left: Quantity | Version, right: Value) -> bool:
    return left.compare(right) < 0  # type: ignore[arg-type]


def _as_integer(_: Meter, value: Quantity) -> int:
    number = value.as_integer()
    if number is None:
        raise SubexpressionError("cannot convert value to integer")
    return number


def _is_integer(_: Meter, value: Quantity) -> bool:
    return value.as_integer() is not None


def _as_float(_: Meter, value: Quantity) -> float:
    return value.approximate()


def _sign(_: Meter, value: Quantity) -> int:
    return (value.value > 0) - (value.value < 0)


def _plus(_: Meter, left: Quantity, right: Quantity | int) -> Quantity:
    total = left.plus(right if isinstance(right, Quantity) else Quantity(right))
    return replace(total, is_computed=True)


def _minus(_: Meter, left: Quantity, right: Quantity | int) -> Quantity:
    total = left.minus(right if isinstance(right, Quantity) else Quantity(right))
    return replace(total, is_computed=True)


def _is_canonical(_: Meter, text: str) -> bool:
    try:
        return str(parse_ip(text)) == text
    except ValueError as error:
        raise SubexpressionError(str(error)) from None


def _text(_: Meter, value: Value) -> str:
    return str(value)


def _contains_ip(_: Meter, network: CIDRValue, address: IPValue) -> bool:
    return network.contains(address.address)


def _contains_ip_text(_: Meter, network: CIDRValue, text: str) -> bool:
    try:
        return network.contains(parse_ip(text).address)
    except ValueError:
        raise no_overload() from None


def _contains_cidr(_: Meter, network: CIDRValue, other: CIDRValue) -> bool:
    return network.contains_network(other)


def _contains_cidr_text(_: Meter, network: CIDRValue, text: str) -> bool:
    try:
        return network.contains_network(parse_cidr(text))
    except ValueError as error:
        raise SubexpressionError(f"{_CIDR_ERROR}{error}") from None


_CIDR_ERROR = "network address parse error during conversion from string: "


def _query(_: Meter, url: URLValue) -> CelMap:
    values = CelMap()
    for name, texts in url.query_values().items():
        values.insert(name, tuple(texts))
    return values


def _validate(_: Meter, named: NamedFormat, text: str) -> Optional:
    problems = named.problems(text)
    return Optional(problems) if problems else ABSENT


def _named_format(_: Meter, name: str) -> Optional:
    found = FORMATS.get(name)
    return ABSENT if found is None else Optional(found)


def declare(library: Library) -> None:
    """Add the functions."""
    _declare_quantities(library)
    _declare_versions(library)
    _declare_networks(library)
    _declare_urls(library)
    _declare_formats(library)
    _declare_authorizer(library)


def _declare_quantities(library: Library) -> None:
    add = library.add
    add("quantity", "string_to_quantity", "(string) -> quantity", _parsing(parse_quantity))
    add("isQuantity", "is_quantity_string", "(string) -> bool", _testing(parse_quantity))
    add("sign", "quantity_sign", "(quantity) -> int", _sign)
    compared = "quantity.(quantity) -> bool"
    add("isGreaterThan", "quantity_is_greater_than", compared, _is_greater)
    add("isLessThan", "quantity_is_less_than", compared, _is_less)
    add("compareTo", "quantity_compare_to", "quantity.(quantity) -> int", _order)
    add("asApproximateFloat", "quantity_get_float", "quantity.() -> double", _as_float)
    add("asInteger", "quantity_get_int", "quantity.() -> int", _as_integer)
    add("isInteger", "quantity_is_integer", "quantity.() -> bool", _is_integer)
    for name, evaluate in (("add", _plus), ("sub", _minus)):
        add(name, f"quantity_{name}", "quantity.(quantity) -> quantity", evaluate)
        add(name, f"quantity_{name}_int", "quantity.(int) -> quantity", evaluate)


def _declare_versions(library: Library) -> None:
    add = library.add
    add("semver", "string_to_semver", "(string) -> semver", _to_version)
    add("semver", "string_bool_to_semver", "(string, bool) -> semver", _to_version)
    add("isSemver", "is_semver_string", "(string) -> bool", _is_version)
    add("isSemver", "is_semver_string_bool", "(string, bool) -> bool", _is_version)
    add("isGreaterThan", "semver_is_greater_than", "semver.(semver) -> bool", _is_greater)
    add("isLessThan", "semver_is_less_than", "semver.(semver) -> bool", _is_less)
    add("compareTo", "semver_compare_to", "semver.(semver) -> int", _order)
    add("major", "semver_major", "semver.() -> int", lambda _, version: version.major)
    add("minor", "semver_minor", "semver.() -> int", lambda _, version: version.minor)
    add("patch", "semver_patch", "semver.() -> int", lambda _, version: version.patch)


def _declare_networks(library: Library) -> None:
    add = library.add
    add("ip", "string_to_ip", "(string) -> ip", _parsing(parse_ip))
    add("isIP", "is_ip", "(string) -> bool", _testing(parse_ip))
    add("ip.isCanonical", "ip_is_canonical", "(string) -> bool", _is_canonical)
    add("string", "ip_to_string", "(ip) -> string", _text)
    add("family", "ip_family", "ip.() -> int", lambda _, ip: ip.address.version)
    predicates: dict[str, tuple[str, Callable[..., bool]]] = {
        "isUnspecified": ("ip_is_unspecified", lambda address: address.is_unspecified),
        "isLoopback": ("ip_is_loopback", lambda address: address.is_loopback),
        "isLinkLocalMulticast": ("ip_is_link_local_multicast", is_link_local_multicast),
        "isLinkLocalUnicast": ("ip_is_link_local_unicast", is_link_local_unicast),
        "isGlobalUnicast": ("ip_is_global_unicast", is_global_unicast),
    }
    for name, (identifier, holds) in predicates.items():
        add(name, identifier, "ip.() -> bool", _address_test(holds))
    add("cidr", "string_to_cidr", "(string) -> cidr", _parsing(parse_cidr, _CIDR_ERROR))
    add("isCIDR", "is_cidr", "(string) -> bool", _testing(parse_cidr))
    add("string", "cidr_to_string", "(cidr) -> string", _text)
    add("containsIP", "cidr_contains_ip_string", "cidr.(string) -> bool", _contains_ip_text)
    add("containsIP", "cidr_contains_ip_ip", "cidr.(ip) -> bool", _contains_ip)
    text = "cidr_contains_cidr_string"
    add("containsCIDR", text, "cidr.(string) -> bool", _contains_cidr_text)
    add("containsCIDR", "cidr_contains_cidr", "cidr.(cidr) -> bool", _contains_cidr)
    add("ip", "cidr_ip", "cidr.() -> ip", lambda _, network: IPValue(network.address))
    length = "cidr_prefix_length"
    add("prefixLength", length, "cidr.() -> int", lambda _, network: network.prefix_length)
    add("masked", "cidr_masked", "cidr.() -> cidr", lambda _, network: network.masked())


def _address_test(holds: Callable[..., bool]) -> Implementation:
    return lambda _, ip: holds(ip.address)


def _declare_urls(library: Library) -> None:
    add = library.add
    error = "URL parse error during conversion from string: "
    add("url", "string_to_url", "(string) -> url", _parsing(parse_url, error))
    add("isURL", "is_url_string", "(string) -> bool", _testing(parse_url))
    add("getScheme", "url_get_scheme", "url.() -> string", lambda _, url: url.scheme)
    add("getHost", "url_get_host", "url.() -> string", lambda _, url: url.host)
    add("getHostname", "url_get_hostname", "url.() -> string", lambda _, url: url.hostname)
    add("getPort", "url_get_port", "url.() -> string", lambda _, url: url.port)
    path = "url_get_escaped_path"
    add("getEscapedPath", path, "url.() -> string", lambda _, url: url.escaped_path)
    add("getQuery", "url_get_query", "url.() -> map(string, list(string))", _query)


def _declare_formats(library: Library) -> None:
    checked = "format.(string) -> optional(list(string))"
    library.add("validate", "format-validate", checked, _validate)
    named = "(string) -> optional(format)"
    library.add("format.named", "format-named", named, _named_format)
    for name, found in FORMATS.items():
        full_name = f"format.{name}"
        library.add(full_name, full_name, "() -> format", _constant(found))


def _constant(value: Value) -> Implementation:
    return lambda _: value


def _declare_authorizer(library: Library) -> None:
    """Functions of the authorizer, which selectors of devices do not have.

    They exist because calls on values of unknown type compile and fail when evaluated.
    """
    base = "kubernetes.authorization."
    for name, identifier, signature in (
        ("path", "authorizer_path", "Authorizer.(string) -> PathCheck"),
        ("check", "pathcheck_check", "PathCheck.(string) -> Decision"),
        ("group", "authorizer_group", "Authorizer.(string) -> GroupCheck"),
        (
            "serviceAccount",
            "serviceaccount",
            "Authorizer.(string, string) -> Authorizer",
        ),
        ("resource", "groupcheck_resource", "GroupCheck.(string) -> ResourceCheck"),
        ("subresource", "resourcecheck_subresource", "ResourceCheck.(string) -> ResourceCheck"),
        ("namespace", "resourcecheck_namespace", "ResourceCheck.(string) -> ResourceCheck"),
        ("name", "resourcecheck_name", "ResourceCheck.(string) -> ResourceCheck"),
        ("check", "resourcecheck_check", "ResourceCheck.(string) -> Decision"),
        ("fieldSelector", "authorizer_fieldselector", "ResourceCheck.(string) -> ResourceCheck"),
        ("labelSelector", "authorizer_labelselector", "ResourceCheck.(string) -> ResourceCheck"),
        ("errored", "decision_errored", "Decision.() -> bool"),
        ("error", "decision_error", "Decision.() -> string"),
        ("allowed", "decision_allowed", "Decision.() -> bool"),
        ("reason", "decision_reason", "Decision.() -> string"),
    ):
        left, dot, right = signature.partition(".(")
        arguments, result = right.split(") -> ")
        result = result if result in ("bool", "string") else base + result
        library.add(name, identifier, f"{base}{left}{dot}{arguments}) -> {result}", _constant(None))
