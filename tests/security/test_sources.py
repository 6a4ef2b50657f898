"""Checks all sources: no data in shells, code, SQL or templates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for folder in ("asched", "migrations") for path in (ROOT / folder).rglob("*.py")
)
RUNS_CODE = {
    "eval", "exec", "compile", "os.system", "os.popen", "os.execv", "os.execvp", "pickle.load",
    "pickle.loads", "marshal.load", "marshal.loads", "shelve.open", "dill.loads", "yaml.load",
    "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.unsafe_load_all",
    "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "jinja2.Template", "string.Template", "numpy.load", "np.load",
}  # fmt: skip
"""What runs, or may run, what it is given."""
UNVERIFIED = {"ssl._create_unverified_context", "ssl._create_stdlib_context"}
SQL = ("execute", "executemany", "executescript", "exec_driver_sql", "text", "fetch", "fetchval")
"""Methods and functions with SQL as the first argument."""


def name_of(node: ast.expr) -> str:
    """``os.path.join`` of the expression that says so; empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := name_of(node.value)):
        return f"{base}.{node.attr}"
    return ""


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def violations(source: str) -> list[str]:
    """What breaks a rule, with its line."""
    found = []
    for call in calls(ast.parse(source)):
        name = name_of(call.func)
        if name in RUNS_CODE | UNVERIFIED:
            found.append(f"{call.lineno}: {name}")
        for keyword in call.keywords:
            if keyword.arg == "shell" and not _is_constant(keyword.value, False):
                found.append(f"{call.lineno}: shell=")
            if keyword.arg in ("verify", "ssl") and _is_constant(keyword.value, False):
                found.append(f"{call.lineno}: {keyword.arg}=False")
    return found


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def composed_sql(source: str) -> list[str]:
    """Lines where SQL is put together from anything but constants of a module (in capitals)."""
    found = []
    for call in calls(ast.parse(source)):
        function = name_of(call.func).rpartition(".")[2]
        if function in SQL and call.args and not _fixed(call.args[0]):
            found.append(f"{call.lineno}: {ast.unparse(call)}")
    return found


def _fixed(node: ast.expr) -> bool:
    """Whether no part of a text comes from data.

    Other values, such as statements of the database library, are checked where they are built.
    """
    match node:
        case ast.JoinedStr():
            return all(
                isinstance(part, ast.Constant)
                or (isinstance(part, ast.FormattedValue) and _of_module(part.value))
                for part in node.values
            )
        case ast.BinOp(left=left, right=right):
            return _fixed(left) and _fixed(right) and not isinstance(node.op, ast.Mod)
        case ast.Call(func=ast.Attribute(attr="format" | "join" | "replace")):
            return False
        case _:
            return True


def _of_module(node: ast.expr) -> bool:
    """A constant of the module, or of one of its structures: ``TABLE``, ``TABLE.name``."""
    name = name_of(node)
    return bool(name) and name.partition(".")[0].strip("_").isupper()


def test_no_code_execution_of_input() -> None:
    found = {path: violations(path.read_text()) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


INDEX_FILES: Final = frozenset(
    ROOT / "asched" / "ui" / name
    for name in ("index_file.py", "state_file.py", "history_tables.py")
)
"""Files next to the journal that may be deleted at any time."""


def test_sql_is_not_composed_from_data() -> None:
    using = [path for path in SOURCES if path.parent.name == "journal" or path in INDEX_FILES]
    found = {path: composed_sql(path.read_text()) for path in using}
    assert len(found) > 10
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "path",
    [p for p in SOURCES if p.is_relative_to(ROOT / "migrations" / "versions")],
    ids=lambda path: path.name,
)
def test_migrations_compose_sql_without_data(path: Path) -> None:
    reads = ("fetchall", "fetchone", "scalar", "scalars", "mappings", "get", "getenv")
    names = [name_of(call.func).rpartition(".")[2] for call in calls(ast.parse(path.read_text()))]
    assert not {*names} & {*reads}


def test_only_journal_and_index_files_use_sql() -> None:
    """So the rule above covers all SQL."""
    for path in SOURCES:
        words, source = {"sqlalchemy", "sqlite3", "asyncpg", "aiosqlite"}, path.read_text()
        if not any(word in source for word in words):
            continue
        tree = ast.parse(source)
        imported = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        if imported & words:
            parts = path.relative_to(ROOT).parts
            allowed = parts[0] == "migrations" or parts[1] == "journal" or path in INDEX_FILES
            assert allowed, path


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.system(name)", "eval(text)", "import yaml\nyaml.load(text)",
        "run(command, shell=True)", "run(command, shell=flag)", "session.get(url, ssl=False)",
        "import pickle\npickle.loads(blob)",
    ],
)  # fmt: skip
def test_scan_detects_execution(source: str) -> None:
    assert len(violations(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "c.execute(f'SELECT {name}')", "c.execute('SELECT %s' % name)", "text('a' + f'{pod.key}')",
        "c.execute('SELECT {}'.format(name))", "c.execute(', '.join(names))",
    ],
)  # fmt: skip
def test_scan_detects_composed_sql(source: str) -> None:
    assert len(composed_sql(source)) == 1
