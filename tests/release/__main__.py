"""Prepares a release from a clean checkout.

    python -m tests.release [--python python3.12 ...] [--skip-tests]

checks that nothing is uncommitted and that version, changelog, chart and citation agree; runs the
tests; builds wheel and sdist; installs both in new environments of each Python, with the pinned
dependencies, and tries them in an empty folder; writes the bill of materials and checksums to
``dist``. Publishing is left to a person, who gets the commands for it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tests.release.versions import ROOT, disagreements

DIST: Final = ROOT / "dist"
PYTHONS: Final = ("python3.11", "python3.12", "python3.13")
_POD: Final = "ops/intolerant-0"


class ReleaseError(Exception):
    """The release cannot be made; the message says why."""


def main(
    python: Annotated[
        list[str] | None, typer.Option(help="A Python to try the distributions on (repeatable).")
    ] = None,
    skip_tests: Annotated[
        bool, typer.Option("--skip-tests", help="For a rehearsal: the tests ran already.")
    ] = False,
) -> None:
    """Build and try the distributions of this version."""
    try:
        for line in _steps(python or PYTHONS, skip_tests=skip_tests):
            print(line, flush=True)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _steps(pythons: Sequence[str], *, skip_tests: bool) -> Iterator[str]:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if _run("git", "status", "--porcelain").strip():
        raise ReleaseError("there are uncommitted changes; commit them, or use a fresh clone")
    if found := disagreements(version, is_final=not skip_tests):
        raise ReleaseError("; ".join(found))
    missing = [name for name in pythons if shutil.which(name) is None]
    if missing:
        raise ReleaseError(f"not in the PATH: {', '.join(missing)}")
    if not skip_tests:
        yield "running the tests"
        _run("make", "test")
    yield "building"
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT))
    for name in pythons:
        for built in sorted(DIST.glob("asched-*")):
            yield f"trying {built.name} with {name}"
            with tempfile.TemporaryDirectory() as folder:
                _try(name, built, Path(folder))
    _run(sys.executable, "-m", "tests.security.sbom", str(DIST / "asched.cdx.json"))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
            for file in sorted(DIST.iterdir()) if file.is_file()]  # fmt: skip
    (DIST / "SHA256SUMS").write_text("".join(sums))
    yield f"dist has {len(sums)} files and SHA256SUMS. To publish version {version}:"
    yield f"  git tag --sign v{version} --message 'asched {version}' && git push origin v{version}"
    yield "  python -m twine upload dist/asched-*"
    yield f"  podman build -t asched:{version} . && helm package helm/asched"


def _try(python: str, built: Path, folder: Path) -> None:
    """Raises ReleaseError if the installed distribution does not schedule and explain."""
    home, work = folder / "venv", folder / "empty"
    work.mkdir()
    _run(python, "-m", "venv", str(home), cwd=work)
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run(*pip, "install", "--require-hashes", "-r", str(ROOT / "constraints.txt"), cwd=work)
    _run(*pip, "install", "--no-deps", "--no-build-isolation", str(built), cwd=work)
    asched = str(home / "bin" / "asched")
    size = ("--nodes", "20", "--pods", "50", "--over", "1")
    _run(asched, "demo", *size, "--journal", "demo.db", cwd=work)
    explained = _run(asched, "explain", _POD, "--journal", "demo.db", cwd=work)
    if "recomputed from the journal: identical" not in explained:
        raise ReleaseError(f"{built.name} with {python}: explain did not recompute the decision")
    _run(asched, "replay", "--verify", "--journal", "demo.db", cwd=work)


def _run(*command: str, cwd: Path = ROOT) -> str:
    """The standard output. Raises ReleaseError with the end of what a failed command printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise ReleaseError(f"{' '.join(command)}: exit code {done.returncode}\n{end}")
    return done.stdout


if __name__ == "__main__":
    typer.run(main)
