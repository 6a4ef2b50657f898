"""The distribution imports only the public API."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import asched_gpu

ALLOWED = ("asched.framework", "asched.model")


def imports(path: Path) -> Iterator[str]:
    for item in ast.walk(ast.parse(path.read_text())):
        if isinstance(item, ast.Import):
            yield from (name.name for name in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, f"{path.name}: a relative import"
            yield item.module or ""


def test_package_imports_only_the_public_api() -> None:
    [folder] = asched_gpu.__path__
    files = sorted(Path(folder).rglob("*.py"))
    assert files
    for path in files:
        ours = [name for name in imports(path) if name.split(".")[0] == "asched"]
        assert all(name.startswith(ALLOWED) for name in ours), (path.name, ours)
