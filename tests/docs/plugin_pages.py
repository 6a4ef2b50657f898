"""The pages under docs/plugins that are made of the code, one for each extension point, and the list of
all public names.

    python -m tests.docs.plugin_pages

writes them; a test compares.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import asched.framework
import asched.model
from asched.framework.interface import API_VERSION, ExtensionPoint, Plugin
from tests.docs.extension_points import CONTRACTS, PointContract

FOLDER: Final = Path(__file__).parents[2] / "docs" / "plugins"
_LINE_LENGTH: Final = 100
_NOTE: Final = "<!-- Made by `python -m tests.docs.plugin_pages`; do not edit. -->"
_PROMISE: Final = (
    f"The contract, `api_version` {API_VERSION}: every name of `asched.framework` and `asched.model`."
    " Nothing else is promised to stay. [index.md](index.md) is the guide."
)
_FACES: Final = (asched.framework, asched.model)


def pages() -> dict[str, str]:
    """The text of every page, by file name."""
    found = {f"{slug(point)}.md": _point_page(point) for point in ExtensionPoint}
    return {**found, "reference.md": _reference_page()}


def slug(point: ExtensionPoint) -> str:
    """``preFilter`` becomes ``pre-filter``."""
    return re.sub(r"([A-Z])", r"-\1", point.field).lower()


def title(point: ExtensionPoint) -> str:
    return point.field[0].upper() + point.field[1:]


# -- one extension point --------------------------------------------------------------------------


def _point_page(point: ExtensionPoint) -> str:
    contract: PointContract = CONTRACTS[point]
    parts = [
        f"# {title(point)}",
        _NOTE,
        f"`{point.field}` in a configuration. All points: [index.md](index.md).",
        f"**When it runs.** {contract.when}",
        f"**What it may do.** {contract.may}",
        f"**What it costs.** {contract.cost}",
        f"**Purity.** {contract.purity}",
        f"**When it fails.** {contract.failing}",
    ]
    parts += [_class(base, "Derive from") for base in point.bases]
    parts += [_class(companion, "May go with it:") for companion in contract.companions]
    return "\n\n".join(parts) + "\n"


def _class(cls: type[Plugin], lead: str) -> str:
    lines = [f"## {lead} `{cls.__name__}`", prose(cls)]
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            lines += [f"```python\n{signature(value)}\n```", prose(value)]
        elif isinstance(value, property):
            lines += [f"`{name}`, a property. {prose(value)}"]
        else:
            note = _attribute_notes(cls).get(name, "")
            lines += [f"`{name} = {_shown(value)}`. {_flowing(note)}".rstrip(" .") + "."]
    return "\n\n".join(line for line in lines if line)


def signature(function: Any) -> str:
    """A method as it is to be written, its types under the names that plugins import."""
    shown = str(inspect.signature(function)).replace("'", "")
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    line = f"{word} {function.__name__}{shown}: ..."
    if len(line) <= _LINE_LENGTH:
        return line
    # As the formatter breaks it, which looks at the examples of pages, too.
    head, _, rest = line.partition("(")
    parameters, _, answer = rest.rpartition(") -> ")
    return f"{head}(\n    {parameters}\n) -> {answer}"


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(_shown, value))) + "}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value)


# -- what docstrings say --------------------------------------------------------------------------


def prose(thing: object) -> str:
    """Its own docstring as Markdown, paragraph by paragraph."""
    text = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return "\n\n".join(_flowing(part) for part in textwrap.dedent(_unindented(text)).split("\n\n"))


def _unindented(text: str | None) -> str:
    return inspect.cleandoc(text or "")


def _flowing(text: str) -> str:
    """One paragraph, its references as code."""
    text = re.sub(r":[a-z]+:`~?([^`]+)`", lambda match: f"`{_last_names(match[1])}`", text)
    return " ".join(text.replace("``", "`").split())


def _last_names(reference: str) -> str:
    """``asched.framework.cluster.Handle`` is imported as ``Handle``."""
    return re.sub(r"^asched\.[a-z_.]+\.(?=[A-Z])", "", reference)


@cache
def _source_tree(module: str) -> ast.Module:
    found = inspect.getmodule(__import__(module, fromlist=["_"]))
    assert found is not None
    return ast.parse(inspect.getsource(found))


def _attribute_notes(cls: type) -> dict[str, str]:
    """The texts under a class's attributes, by name."""
    for node in ast.walk(_source_tree(cls.__module__)):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return dict(_notes(node.body))
    return {}


def _notes(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, after in pairwise(body):
        name = _assigned(statement)
        if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield name, inspect.cleandoc(str(after.value.value))


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return ""


# -- all names ------------------------------------------------------------------------------------


def documentation(face: ModuleType, name: str) -> str:
    """What is said of a public name where it is defined, its first paragraph; empty for nothing."""
    value = getattr(face, name)
    if inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value)):
        return prose(value).partition("\n\n")[0]
    for module in _modules_of(face):
        notes = dict(_notes(_source_tree(module).body))
        if name in notes:
            return _flowing(notes[name].partition("\n\n")[0])
    return ""


def _modules_of(face: ModuleType) -> Iterator[str]:
    """The modules that a face takes its names from."""
    for node in _source_tree(face.__name__).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(face.__name__):
            yield node.module or ""


def _reference_page() -> str:
    parts = [
        "# What a plugin may import",
        _NOTE,
        _PROMISE,
    ]
    for face in _FACES:
        rows = [f"| `{name}` | {documentation(face, name)} |" for name in sorted(face.__all__)]
        parts.append(f"## `{face.__name__}`")
        parts.append("\n".join(["| name | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
