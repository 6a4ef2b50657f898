"""docs/how-to/install.md: each command is run, or parsed by its program."""

from __future__ import annotations

import base64
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import helm_python as helm
import pytest
import yaml
from sqlalchemy import make_url

from asched.cli.config import CRD_GROUPS
from asched.config.file import load
from asched.config.registry import PluginRegistry
from tests.apiserver.kubectl import needs_kubectl
from tests.docs.command_lines import parsed
from tests.helm.chart import CHART, NAMESPACE, ROOT, Values, only
from tests.systemd.unit import directives, one

_ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text()
_KNOWN = {
    "python3",
    "pip",
    "asched",
    "install",
    "umask",
    "systemctl",
    "cp",
    "podman",
    "helm",
    "kubectl",
}


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    return [line for block in blocks for line in block.splitlines()]


def of(program: str) -> list[list[str]]:
    """Command lines of a program in any directory, without its name."""
    split = [shlex.split(line) for line in commands()]
    return [words[1:] for words in split if Path(words[0]).name == program]


def test_every_program_is_covered_by_a_test() -> None:
    assert {Path(shlex.split(line)[0]).name for line in commands()} == _KNOWN


@pytest.mark.parametrize("line", [line for line in commands() if "asched " in line.split("/")[-1]])
def test_asched_commands_parse(line: str) -> None:
    found = re.findall(r"(?:^|-- )((?:\S*/)?asched (?!helm/)[^|]*)", line)
    for command in found:
        if not command.endswith("--version"):
            parsed(command.strip().replace("/etc/asched/", f"{ROOT}/systemd/"))
    assert found or shlex.split(line)[0] in ("helm", "systemctl")


def test_crd_group_exists() -> None:
    (line,) = (line for line in commands() if "crds" in line)
    assert shlex.split(line)[3] in CRD_GROUPS


# -- systemd ----------------------------------------------------------------------------------


def test_installed_paths_match_the_unit(tmp_path: Path) -> None:
    for words in of("install"):
        *options, source, target = words
        subprocess.run(
            ["install", *options, str(ROOT / source), f"{tmp_path}{target}"], check=True, timeout=60
        )
    installed = {f"/{file.relative_to(tmp_path)}" for file in tmp_path.rglob("*") if file.is_file()}
    (environment,) = directives()["Service.EnvironmentFile"]
    named = {environment.removeprefix("-"), one("Service.ExecStart").split()[-1]}
    assert installed == named | {"/etc/systemd/system/asched.service"}
    assert (tmp_path / "etc/asched/asched.env").stat().st_mode & 0o777 == 0o600
    assert load(tmp_path / "etc/asched/asched.yaml", PluginRegistry.discover()).profiles


def test_virtual_environment_matches_the_unit() -> None:
    program = Path(one("Service.ExecStart").split()[0])
    assert of("python3") == [["-m", "venv", str(program.parents[1])]]
    assert {line.split()[0] for line in commands() if "/bin/" in line} == {
        str(program), str(program.with_name("pip")),
    }  # fmt: skip
    for words in of("pip"):
        assert [word for word in words if word.startswith(".")] == [".[postgres]"]
    assert 'postgres = ["' in (ROOT / "pyproject.toml").read_text()


def test_systemctl_names_the_unit() -> None:
    units = [words[-1] for words in of("systemctl") if words != ["daemon-reload"]]
    assert {*units} == {"asched"}
    # With DynamicUser the state is below /var/lib/private.
    assert of("cp")[0][1] == f"/var/lib/private/{one('Service.StateDirectory')}"


@needs_kubectl
def test_kubeconfig_command_embeds_certificates(tmp_path: Path) -> None:
    (line,) = (line for line in commands() if "config view" in line)
    target = one("Service.LoadCredential").partition(":")[2]
    assert line.endswith(f"> {target}")
    (tmp_path / "ca.crt").write_text("certificate")
    (tmp_path / "config").write_text(
        "{apiVersion: v1, kind: Config, current-context: a,"
        " clusters: [{name: c, cluster: {server: 'https://k', certificate-authority: ca.crt}}],"
        " users: [{name: u, user: {token: t}}],"
        " contexts: [{name: a, context: {cluster: c, user: u}}]}"
    )
    subprocess.run(
        ["sh", "-c", line.replace(target, str(tmp_path / "kubeconfig"))],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(tmp_path / "config")},
        check=True,
        timeout=60,
    )
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o777 == 0o600
    found = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert found["users"][0]["user"] == {"token": "t"}
    assert "certificate-authority-data" in found["clusters"][0]["cluster"]


# -- Helm -------------------------------------------------------------------------------------


def _render(values: Values) -> dict[str, str]:
    with helm.Chart.load(CHART) as chart:
        return chart.render(values, name="asched", namespace=NAMESPACE)


def _objects(values: Values) -> list[dict[str, object]]:
    texts = _render(values)
    return [
        found
        for name, text in texts.items()
        if name.endswith(".yaml")
        for found in yaml.safe_load_all(text)
        if found
    ]


@pytest.mark.parametrize("words", of("helm"), ids=["sqlite", "signed", "postgres"])
def test_helm_commands_render(words: list[str]) -> None:
    assert words[:4] == ["upgrade", "--install", "asched", "helm/asched"]
    assert words[4:6] == ["--namespace", NAMESPACE]
    assert {*words[6::2]} == {"--set"}
    values: Values = helm.parse_set_string(",".join(words[7::2]))
    kinds = {each["kind"] for each in _objects(values)}
    assert ("Deployment" in kinds) == ("postgres" in values.get("journal", {}))
    # The page names the first pod of the StatefulSet.
    exec_line = next(words for words in of("kubectl") if "exec" in words)
    notes = _render({})["asched/templates/NOTES.txt"]
    assert f"exec {exec_line[exec_line.index('exec') + 1]} -- asched journal stats" in notes


def test_values_on_the_page_are_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    data = only(_objects(helm.values_from_yaml(block)), "ConfigMap")["data"]
    (tmp_path / "asched.yaml").write_text(data["asched.yaml"])
    found = load(tmp_path / "asched.yaml", PluginRegistry.discover())
    assert found.settings.log.level.value == "debug"
    assert [profile.scheduler_name for profile in found.profiles] == ["asched"]


@needs_kubectl
@pytest.mark.parametrize("owner", ["postgres", "signing"])
def test_secret_has_the_key_of_the_chart(tmp_path: Path, owner: str) -> None:
    (line,) = (line for line in commands() if f"{owner}.secret.name=" in line)
    name = line.rpartition("=")[2]
    for created in (line for line in commands() if "printf" in line or "keygen" in line):
        subprocess.run(
            ["sh", "-c", created], cwd=tmp_path, env=_ENVIRONMENT, check=True, timeout=60
        )
    (words,) = (words for words in of("kubectl") if "secret" in words and name in words)
    done = subprocess.run(
        ["kubectl", *words, "--dry-run=client", "-o", "yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    secret = yaml.safe_load(done.stdout)
    with helm.Chart.load(CHART) as chart:
        assert {*secret["data"]} == {chart.values["journal"][owner]["secret"]["key"]}
    assert secret["metadata"]["name"] == name
    if owner == "postgres":
        url = base64.b64decode(secret["data"]["url"]).decode()
        assert make_url(url).render_as_string(hide_password=False) == url
    assert secret["metadata"]["namespace"] == NAMESPACE


def test_built_image_is_the_deployed_image() -> None:
    build, push = of("podman")
    assert build[:2] == ["build", "-t"]
    assert build[2] == push[1]
    container = only(_objects(helm.parse_set_string(of("helm")[0][-1])), "StatefulSet")
    assert f"'image': '{push[1]}'" in str(container)
    assert (ROOT / "Containerfile").exists()
