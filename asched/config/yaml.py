"""Parses YAML into plain data with line numbers, and reads files up to a size limit.

Mappings, lists, strings, numbers, booleans and null have Kubernetes' meaning: a timestamp is a
string, and a duplicate key is an error. Tags that construct objects are rejected.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path as FilePath
from typing import Any, Final

import msgspec
import yaml

from asched.framework.runtime.strict import Path, Problem

MAX_NODES: Final = 200_000
"""Limit for values after the expansion of aliases."""

_PREFIX: Final = "tag:yaml.org,2002:"


class YamlError(ValueError):
    """The text is not YAML; ``line`` counts from 1, 0 means unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class Document(msgspec.Struct):
    """A document's value, the line of each path, and the problems found while parsing."""

    value: Any
    lines: dict[Path, int]
    problems: list[Problem]

    def line(self, path: Path) -> int:
        """The line of the path, or of its nearest ancestor."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)

    def located(self, problems: Iterable[Problem]) -> list[tuple[int, Problem]]:
        """The problems with their lines, in the order of the file."""
        lines = [(self.line(problem.path), problem) for problem in problems]
        return sorted(lines, key=itemgetter(0))


MAX_DEPTH: Final = 100
"""Limit for the nesting of values."""


def parse_documents(text: str) -> list[Document]:
    """All non-empty documents of a text. Raises :class:`YamlError`."""
    documents = [_Builder().document(node) for node in compose_documents(text)]
    return [document for document in documents if document.value is not None]


def compose_documents(text: str) -> list[yaml.Node]:
    """The nodes of all documents, which are within the limits. Raises :class:`YamlError`."""
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(what, mark.line + 1 if mark else 0) from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from None
    composed = [node for node in nodes if node is not None]
    for node in composed:
        _check_expansion(node)
    return composed


def _check_expansion(root: yaml.Node) -> None:
    """Check the number of values and their depth after the expansion of aliases. The time depends
    on the size of the text."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size_of(node: yaml.Node, depth: int) -> int:
        line = node.start_mark.line + 1
        if id(node) in open_nodes:
            raise YamlError("an alias contains itself", line)
        if depth > MAX_DEPTH:
            raise YamlError(_TOO_LARGE, line)
        known = sizes.get(id(node))
        if known is None:
            open_nodes.add(id(node))
            if isinstance(node, yaml.ScalarNode):
                _check_text(node)
            known = 1 + sum(size_of(inner, depth + 1) for inner in _parts(node))
            open_nodes.remove(id(node))
            sizes[id(node)] = known
        if known > MAX_NODES:
            raise YamlError(_TOO_LARGE, line)
        return known

    size_of(root, 0)


_TOO_LARGE: Final = "too large or too deep once its aliases are expanded"


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    """The nodes within a collection. The keys of a mapping are scalars, or rejected later."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError("a key must be a scalar", key.start_mark.line + 1)
            _check_text(key)
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _check_text(scalar: yaml.ScalarNode) -> None:
    """An escape such as ``"\\ud800"`` gives a string that cannot be recorded."""
    try:
        scalar.value.encode()
    except UnicodeEncodeError:
        line = scalar.start_mark.line + 1
        raise YamlError("a string contains half of a surrogate pair", line) from None


class _Builder:
    """Converts the nodes of one document into values."""

    def __init__(self) -> None:
        self._document = Document(None, {}, [])

    def document(self, node: yaml.Node) -> Document:
        self._document.value = self._value(node, ())
        return self._document

    def _value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self._document.lines.setdefault(path, line)
        match node:
            case yaml.MappingNode():
                return self._mapping(node, path)
            case yaml.SequenceNode():
                return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
            case yaml.ScalarNode():
                return self._scalar(node, path)
            case _:
                raise AssertionError(f"unknown kind of node: {node!r}")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_PREFIX}merge":
                merged += _merged_mappings(value_node)
                continue
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise YamlError("a key must be a scalar", line)
            key = str(key_node.value)
            where = (*path, key)
            if key in value:
                first = self._document.lines[where]
                self._note(where, f"duplicate key, on lines {first} and {line}")
                continue
            self._document.lines[where] = line
            value[key] = self._value(value_node, where)
        for mapping in merged:
            if not isinstance(mapping, yaml.MappingNode):
                raise YamlError("only a mapping can be merged", mapping.start_mark.line + 1)
            value = {**self._mapping(mapping, path), **value}
        return value

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix(_PREFIX)
        try:
            match kind:
                case "null":
                    return None
                case "bool":
                    return yaml.SafeLoader.bool_values[text.lower()]
                case "int" if ":" not in text:
                    return _constructor.construct_yaml_int(node)
                case "float" if ":" not in text:
                    number = _constructor.construct_yaml_float(node)
                    if math.isfinite(number):
                        return number
                    self._note(path, f"{text} is not a finite number")
                    return None
                case "str" | "timestamp" | "int" | "float" | "value":
                    return text
        except (ValueError, LookupError):
            self._note(path, f'"{text}" is not a value of the type !!{kind}')
            return None
        raise YamlError(f"the tag {node.tag} is not allowed", node.start_mark.line + 1)

    def _note(self, path: Path, message: str) -> None:
        self._document.problems.append(Problem(path, message))


_constructor: Final = yaml.constructor.SafeConstructor()


def _merged_mappings(node: yaml.Node) -> Iterator[yaml.Node]:
    """The mappings of a merge key (``<<``); the first one of a key counts."""
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    else:
        yield node


CONFIG_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Limit for configurations, kubeconfigs and certificates. A ConfigMap holds at most 1 MiB."""


def read_limited(path: FilePath, limit_bytes: int = CONFIG_LIMIT_BYTES) -> bytes:
    """The content of a file. Raises OSError, with EFBIG above ``limit_bytes``."""
    with path.open("rb") as file:
        # Devices and pipes have no size in the file system.
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(path))
    return content
