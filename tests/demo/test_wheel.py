"""An installed wheel contains migrations and data, and works like a checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from asched.cli.plugin_template import template_files
from tests.demo.running import demo, logged

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 100


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with asched from its wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder),
        str(ROOT), cwd=folder,
    )  # fmt: skip
    [wheel] = folder.glob("asched-*.whl")
    home = folder / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    run(
        sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install",
        "--no-deps", "--no-index", "--quiet", str(wheel), cwd=folder,
    )  # fmt: skip
    [packages] = home.glob("lib/python*/site-packages")
    # Python does not follow .pth files there, so the checkout stays invisible.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_demo_runs_from_installed_wheel(installed: Path, tmp_path: Path) -> None:
    python = installed / "bin" / "python"
    where = run(str(python), "-c", "import asched; print(asched.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    done = demo(
        "--nodes", "20", "--pods", "100", "--over", "1", "--journal", "run.db",
        cwd=tmp_path, command=[str(installed / "bin" / "asched")],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logged(done.stderr)
    output = run(
        str(installed / "bin" / "asched"), "explain", "ops/intolerant-0", "--journal", "run.db",
        cwd=tmp_path,
    )  # fmt: skip
    assert "recomputed from the journal: identical" in output


def test_wheel_contains_data_files(installed: Path) -> None:
    [package] = installed.glob("lib/python*/site-packages/asched")
    shipped = {path.name for path in (package / "_migrations" / "versions").glob("*.py")}
    assert shipped == {path.name for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert (package / "_migrations" / "env.py").is_file()
    template = ROOT / "plugins" / "asched-plugin-template"
    assert template_files(package / "_plugin_template") == template_files(template)
    manifests = {path.name for path in (package / "manifests").glob("*.yaml")}
    assert manifests == {path.name for path in (ROOT / "asched" / "manifests").glob("*.yaml")}
    assert not list(package.parent.glob("tests*")), "tests are not installed"
