"""The Containerfile, against what it copies and what the chart expects of the image."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch

import pytest

from asched.cli.options import JOURNAL_ENV
from tests.docs.command_lines import parsed
from tests.helm.chart import ROOT, container, rendered, workload

TEXT = (ROOT / "Containerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    joined = TEXT.replace("\\\n", " ")
    lines = (line for line in joined.splitlines() if line and not line.startswith("#"))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def arguments(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_image_names_no_index_or_address() -> None:
    assert "://" not in TEXT
    assert "index-url" not in TEXT


def test_both_stages_share_a_base_pinned_by_digest() -> None:
    name, base = instructions()[0]
    assert name == "ARG"
    assert re.fullmatch(r"PYTHON=python:3\.13-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert arguments("FROM") == ["${PYTHON} AS build", "${PYTHON}"]


def test_copied_files_exist() -> None:
    sources = [w for rest in arguments("COPY") if "--from" not in rest for w in rest.split()[:-1]]
    assert {*sources} == {
        "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "migrations",
        "asched", "plugins/asched-plugin-template",
    }  # fmt: skip
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored.count("*") == 1
    for source in sources:
        assert (ROOT / source).exists()
        assert any(fnmatch(source, pattern) for pattern in kept)
    assert kept == {*sources}


def test_downloads_require_hashes() -> None:
    runs = " && ".join(arguments("RUN")).split("&&")
    fetching = [run for run in runs if re.search(r"pip .*\b(install|download)\b", run)]
    assert len(fetching) == 3
    for run in fetching:
        assert "--no-index" in run or "--require-hashes" in run
    (download,) = (run for run in fetching if "--require-hashes" in run)
    assert "--requirement constraints.txt" in download


@pytest.mark.parametrize("package", ["build", "hatchling", "asyncpg", "aiohttp", "numpy"])
def test_installed_packages_are_pinned(package: str) -> None:
    pins = (ROOT / "constraints.txt").read_text()
    assert re.search(rf"^{package}==\S+ \\\n    --hash=sha256:", pins, re.M)


def test_image_runs_as_user_of_chart() -> None:
    security = workload(rendered({}))["spec"]["template"]["spec"]["securityContext"]
    (user,) = arguments("USER")
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert f"--chown={user} /state /var/lib/asched" in " ".join(arguments("COPY"))


def test_image_entrypoint_matches_chart() -> None:
    (entrypoint,), (command,) = arguments("ENTRYPOINT"), arguments("CMD")
    assert parsed(" ".join(json.loads(entrypoint) + json.loads(command)))
    objects = rendered({})
    assert "command" not in container(objects)
    assert json.loads(command)[0] == container(objects)["args"][0]
    (variable,) = container(objects)["env"]
    assert f"{variable['name']}={variable['value']}" in " ".join(arguments("ENV"))
    assert variable["name"] == JOURNAL_ENV
    assert arguments("EXPOSE") == [str(container(objects)["ports"][0]["containerPort"])]
