"""Named formats of Kubernetes, such as ``format.dns1123Label()``."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from asched.cel.addresses import parse_url
from asched.cel.errors import SubexpressionError
from asched.cel.instants import parse_timestamp
from asched.cel.values import register_type

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.I)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATE_TIME_SIZE: Final = 118
_UUID_SIZE: Final = 93


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format with the problems that it finds in a text."""

    name: str
    problems: Callable[[str], tuple[str, ...]] = field(compare=False)
    regex_size: int = field(compare=False)


register_type(NamedFormat, "kubernetes.NamedFormat")


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"


def _regex_error(message: str, pattern: str, *examples: str) -> str:
    parts = f"{message} (e.g. " + " or ".join(f"'{each}', " for each in examples)
    return f"{parts}regex used for validation is '{pattern}')"


def _label(text: str) -> tuple[str, ...]:
    problems = []
    if len(text.encode()) > 63:
        problems.append(_too_long(63))
    if re.fullmatch(_LABEL, text) is None:
        if re.fullmatch(_SUBDOMAIN, text):
            problems.append("must not contain dots")
        else:
            problems.append(
                _regex_error(
                    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters"
                    " or '-', and must start and end with an alphanumeric character",
                    _LABEL,
                    "my-name",
                    "123-abc",
                )
            )
    return tuple(problems)


def _subdomain(text: str) -> tuple[str, ...]:
    problems = []
    if len(text.encode()) > 253:
        problems.append(_too_long(253))
    if _fullmatch(_SUBDOMAIN, text) is None:
        problems.append(
            _regex_error(
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric"
                " characters, '-' or '.', and must start and end with an alphanumeric character",
                _SUBDOMAIN,
                "example.com",
            )
        )
    return tuple(problems)


def _label_1035(text: str) -> tuple[str, ...]:
    problems = []
    if len(text.encode()) > 63:
        problems.append(_too_long(63))
    if re.fullmatch(_LABEL_1035, text) is None:
        problems.append(
            _regex_error(
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start"
                " with an alphabetic character, and end with an alphanumeric character",
                _LABEL_1035,
                "my-name",
                "abc-123",
            )
        )
    return tuple(problems)


def _qualified_name(text: str) -> tuple[str, ...]:
    parts = text.split("/")
    message = (
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
        " alphanumeric character"
    )
    examples = ("MyName", "my.name", "123-abc")
    if len(parts) > 2:
        described = _regex_error(f"a qualified name {message}", _QUALIFIED, *examples)
        return (
            (
                f"{described} with an optional DNS subdomain prefix and '/' (e.g."
                " 'example.com/MyName')"
            ),
        )
    problems = []
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {each}" for each in _subdomain(parts[0])]
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        problems.append(f"name part {_too_long(63)}")
    if re.fullmatch(_QUALIFIED, name) is None:
        problems.append(f"name part {_regex_error(message, _QUALIFIED, *examples)}")
    return tuple(problems)


def _label_value(text: str) -> tuple[str, ...]:
    problems = []
    if len(text.encode()) > 63:
        problems.append(_too_long(63))
    if text and re.fullmatch(_QUALIFIED, text) is None:
        problems.append(
            _regex_error(
                "a valid label must be an empty string or consist of alphanumeric characters, '-',"
                " '_' or '.', and must start and end with an alphanumeric character",
                f"(({_QUALIFIED})?",
                "MyValue",
                "my_value",
                "12345",
            )
        )
    return tuple(problems)


def _fullmatch(pattern: str, text: str) -> re.Match[str] | None:
    # A longer text is invalid anyway.
    return re.fullmatch(pattern, text) if len(text) <= 4096 else None


def _prefix_of(check: Callable[[str], tuple[str, ...]]) -> Callable[[str], tuple[str, ...]]:
    """The check for a text that a generated suffix follows, so that it may end in a dash."""

    def problems(text: str) -> tuple[str, ...]:
        return check(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)

    return problems


def _uri(text: str) -> tuple[str, ...]:
    try:
        parse_url(text)
    except ValueError as error:
        return (str(error),)
    return ()


def _uuid(text: str) -> tuple[str, ...]:
    return () if _UUID.fullmatch(text) else ("does not match the UUID format",)


def _byte(text: str) -> tuple[str, ...]:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except ValueError:
        return ("invalid base64",)
    return () if text.isascii() else ("invalid base64",)


def _date(text: str) -> tuple[str, ...]:
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return ()
    except ValueError:
        pass
    return ("invalid date",)


def _date_time(text: str) -> tuple[str, ...]:
    try:
        return () if parse_timestamp(text.upper()) is not None else ("invalid datetime",)
    except SubexpressionError:
        return ("invalid datetime",)


FORMATS: Final[dict[str, NamedFormat]] = {
    "dns1123Label": NamedFormat("DNS1123Label", _label, 30),
    "dns1123Subdomain": NamedFormat("DNS1123Subdomain", _subdomain, 60),
    "dns1035Label": NamedFormat("DNS1035Label", _label_1035, 30),
    "qualifiedName": NamedFormat("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": NamedFormat("DNS1123LabelPrefix", _prefix_of(_label), 30),
    "dns1123SubdomainPrefix": NamedFormat("DNS1123SubdomainPrefix", _prefix_of(_subdomain), 60),
    "dns1035LabelPrefix": NamedFormat("DNS1035LabelPrefix", _prefix_of(_label_1035), 30),
    "labelValue": NamedFormat("LabelValue", _label_value, 40),
    "uri": NamedFormat("URI", _uri, 1103),
    "uuid": NamedFormat("uuid", _uuid, _UUID_SIZE),
    "byte": NamedFormat("byte", _byte, 84),
    "date": NamedFormat("date", _date, _DATE_TIME_SIZE),
    "datetime": NamedFormat("datetime", _date_time, _DATE_TIME_SIZE),
}
