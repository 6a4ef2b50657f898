"""The plugins of the built and installed wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asched.config.registry import PluginRegistry

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 100


def run(*command: str, cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_provides_the_plugins(tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path),
        str(ROOT), cwd=tmp_path,
    )  # fmt: skip
    [wheel] = tmp_path.glob("asched_gpu-*.whl")
    run(
        sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target",
        str(site), str(wheel), cwd=tmp_path,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(site)])
        found = PluginRegistry.discover()
    assert found.names == ("GpuShare", "Yoda")
    assert found.providers("Yoda") == ("asched-gpu 0.1.0",)
    loads = "import asched_gpu.yoda, asched_gpu.gpu_share as g; print(g.__file__)"
    where = run(sys.executable, "-c", loads, cwd=tmp_path, path=str(site)).strip()
    assert Path(where).is_relative_to(site)
    assert not list(site.glob("test*"))
