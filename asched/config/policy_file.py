"""A legacy policy file, converted into the text of a configuration file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import NamedTuple

import yaml

from asched.config.file import ConfigFileError, parse, read_text
from asched.config.policy import KIND, decode_policy
from asched.config.policy_conversion import convert
from asched.config.registry import PluginRegistry
from asched.config.yaml import Document, YamlError, parse_documents
from asched.framework.runtime.strict import Problem


class ConvertedPolicy(NamedTuple):
    """What came of a policy file."""

    text: str
    """A configuration file, in YAML; the notices are comments in it."""
    notices: tuple[str, ...]
    """What has no counterpart or is not quite the same, a line each."""


def convert_policy(path: FilePath, registry: PluginRegistry) -> ConvertedPolicy:
    """Read a policy, in JSON or YAML, and convert it.

    Raises :class:`ConfigFileError` with every mistake found.
    """
    return convert_policy_text(read_text(path), str(path), registry)


def convert_policy_text(text: str, name: str, registry: PluginRegistry) -> ConvertedPolicy:
    """As :func:`convert_policy`, from text; ``name`` stands for the file in messages."""
    document = _only_document(text, name)
    policy, problems = decode_policy(document.value)
    if policy is None:
        raise ConfigFileError(_lines(name, document, [*document.problems, *problems]))
    conversion, unknown = convert(policy, registry)
    problems = [*document.problems, *problems, *unknown]
    if problems:
        raise ConfigFileError(_lines(name, document, problems))
    notices = _lines(name, document, conversion.notices)
    body = yaml.safe_dump(conversion.document, sort_keys=False, allow_unicode=True, width=100)
    # The policy's own form allows values that today's plugins do not.
    parse(body, f"{name}: converted", registry)
    comments = "".join(
        f"# {' '.join(line.split())}\n" for line in (f"Converted from {name}", *notices)
    )
    return ConvertedPolicy(comments + body, tuple(notices))


def _only_document(text: str, name: str) -> Document:
    try:
        documents = parse_documents(text)
    except YamlError as error:
        place = f"{name}:{error.line}" if error.line else name
        raise ConfigFileError([f"{place}: not valid YAML: {error}"]) from None
    if len(documents) != 1:
        raise ConfigFileError(
            [f"{name}: expected one document of kind {KIND}, got {len(documents)}"]
        )
    return documents[0]


def _lines(name: str, document: Document, problems: Iterable[Problem]) -> list[str]:
    """The problems as lines, in the order of the file."""
    placed = sorted((document.line(p.path), index, p) for index, p in enumerate(problems))
    return [f"{name}:{line}: {problem}" for line, _, problem in placed]
