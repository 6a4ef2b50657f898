"""Rules for names, labels and identifiers, with the messages of kube-apiserver."""

from __future__ import annotations

import re

from asched.apiserver.errors import Cause, invalid_value, required, too_long

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
QUALIFIED_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
QUALIFIED_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
C_IDENTIFIER_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of "
    "alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for "
    "validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
MAX_SUBDOMAIN, MAX_LABEL = 253, 63
MAX_DRIVER_NAME = 63


def label_name_causes(field: str, name: str) -> list[Cause]:
    """A lowercase RFC 1123 label."""
    if len(name) > MAX_LABEL:
        return [invalid_value(field, name, f"must be no more than {MAX_LABEL} bytes")]
    return [] if LABEL.fullmatch(name) else [invalid_value(field, name, LABEL_RULE)]


def subdomain_causes(field: str, name: str) -> list[Cause]:
    """A lowercase RFC 1123 subdomain."""
    if len(name) > MAX_SUBDOMAIN:
        return [invalid_value(field, name, f"must be no more than {MAX_SUBDOMAIN} bytes")]
    return [] if SUBDOMAIN.fullmatch(name) else [invalid_value(field, name, SUBDOMAIN_RULE)]


def driver_name_causes(field: str, name: str) -> list[Cause]:
    """The name of a driver, which is a short subdomain."""
    if not name:
        return [required(field)]
    if len(name) > MAX_DRIVER_NAME:
        return [too_long(field, MAX_DRIVER_NAME)]
    return subdomain_causes(field, name.lower())


def label_key_causes(field: str, key: str) -> list[Cause]:
    """The key of a label or taint, or the type of a condition."""
    prefix, slash, name = key.rpartition("/")
    if len(name) > MAX_LABEL or not QUALIFIED_NAME.fullmatch(name):
        return [invalid_value(field, key, QUALIFIED_NAME_RULE)]
    if slash and not SUBDOMAIN.fullmatch(prefix):
        return [invalid_value(field, key, f"prefix part {SUBDOMAIN_RULE}")]
    return []


def label_value_causes(field: str, text: str) -> list[Cause]:
    """The value of a label or taint."""
    if len(text) > MAX_LABEL:
        return [invalid_value(field, text, f"must be no more than {MAX_LABEL} bytes")]
    return [] if LABEL_VALUE.fullmatch(text) else [invalid_value(field, text, LABEL_VALUE_RULE)]
