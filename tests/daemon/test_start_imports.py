"""What a daemon imports: a start waits for every module."""

from __future__ import annotations

import subprocess
import sys

import pytest

from asched.daemon.process import import_hidden

_CODE = """
import sys
from contextlib import suppress
from asched.cli.main import main

sys.argv = ["asched", "run", "--config", "/nonexistent/settings.yaml"]
with suppress(SystemExit):
    main()
assert "asched.daemon.daemon" in sys.modules
for name in ("aiohttp", "alembic", "kubernetes_asyncio", "rich"):
    if name in sys.modules:
        print(name)
"""


def test_run_imports_no_large_library_without_need() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert "/nonexistent/settings.yaml" in done.stderr


def test_hidden_module_can_be_imported_later() -> None:
    sys.modules.pop("this", None)
    with import_hidden("this"), pytest.raises(ModuleNotFoundError):
        import this  # noqa: F401
    assert "this" not in sys.modules
    with import_hidden("sys"):
        import sys as loaded
    assert loaded is sys
