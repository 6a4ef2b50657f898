"""Distributions of plugins, as pip leaves them on disk."""

from __future__ import annotations

from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, source: str) -> str:
    """Install a plugin for this process and for the commands that it starts; returns its module."""
    site, name = folder / "site", plugin.lower()
    module = f"asched_test_{name}"
    info = site / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[asched.plugins]\n{plugin} = {module}:{plugin}\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    monkeypatch.syspath_prepend(str(site))
    return module
