"""docs/tutorial: every command is run, and prints what the page shows.

``python -m tests.docs.walkthrough PAGE`` writes the present outputs to a page.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import helm_python as helm
import pytest
import yaml

from asched.apiserver.cluster import EmbeddedCluster
from tests.apiserver.kubectl import needs_kubectl
from tests.docs import terminal_recording
from tests.docs.command_lines import parsed
from tests.docs.walkthrough import blocks, essence, missing, outputs_of, texts
from tests.helm.chart import CHART, NAMESPACE, Values, only, rendered

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorial"
SVG = "{http://www.w3.org/2000/svg}"
KIND = (TUTORIALS / "kind.md").read_text()


@pytest.mark.parametrize(
    "name", [pytest.param("embedded-cluster", marks=needs_kubectl), "plugin", "study"]
)
async def test_commands_print_what_the_page_shows(name: str) -> None:
    page = (TUTORIALS / f"{name}.md").read_text()
    for shown, printed in zip(texts(page), await outputs_of(page), strict=True):
        assert shown.strip()
        assert missing(shown, printed) == [], printed


async def test_readme_and_its_recording_show_what_the_commands_print() -> None:
    readme = terminal_recording.README.read_text()
    screens = await terminal_recording.recorded()
    [shown] = texts(readme)
    assert shown.strip()
    assert missing(shown, terminal_recording.shown(screens)) == []
    drawn = ET.fromstring(terminal_recording.RECORDING.read_text())
    outputs = drawn.findall(f".//{SVG}g[@class='output']")
    assert len(outputs) == len(screens)
    for screen, output in zip(screens, outputs, strict=True):
        lines = [without_numbers("".join(text.itertext())) for text in output.iter(f"{SVG}text")]
        printed = {without_numbers(line) for line in (*screen.lines, "...")}
        assert [line for line in lines if line not in printed] == []


def without_numbers(line: str) -> str:
    """Rates, sizes and hashes differ from run to run."""
    return re.sub(r"[0-9a-f]{64}|[\d.,]+", "N", essence(line))


def test_tutorial_and_guide_show_the_same_plugin() -> None:
    guide = (TUTORIALS.parent / "how-to" / "plugins" / "index.md").read_text()
    [plugin] = [each.text for each in blocks((TUTORIALS / "plugin.md").read_text())
                if each.title == "one_team.py"]  # fmt: skip
    assert plugin in guide


# -- on kind ----------------------------------------------------------------------------------


def kind_lines(program: str) -> list[str]:
    commands = [line for block in blocks(KIND) if block.kind == "sh"
                for line in block.text.splitlines()]  # fmt: skip
    return [line for line in commands if line.startswith(f"{program} ")]


def test_chart_renders_with_the_values_of_the_page() -> None:
    [line] = kind_lines("helm")
    words = shlex.split(line)
    assert words[1:7] == ["upgrade", "--install", "asched", "helm/asched", "--namespace", NAMESPACE]
    assert {*words[7::2]} == {"--set"}
    values: Values = helm.parse_set_string(",".join(words[8::2]))
    with helm.Chart.load(CHART) as chart:
        texts_by_name = chart.render(values, name=words[3], namespace=NAMESPACE)
    objects = [
        found
        for name, text in texts_by_name.items()
        if not name.endswith("NOTES.txt")
        for found in yaml.safe_load_all(text)
        if found
    ]
    stateful = only(objects, "StatefulSet")
    assert stateful["metadata"]["name"] == "asched"
    [container] = stateful["spec"]["template"]["spec"]["containers"]
    # The image that the page builds and loads; a kubelet of kind cannot pull it.
    [built] = [words[words.index("-t") + 1] for words in map(shlex.split, kind_lines("docker"))]
    assert (container["image"], container["imagePullPolicy"]) == (built, "Never")
    assert f"kind load docker-image {built} --name asched" in KIND


def test_pod_on_the_page_is_valid_and_for_the_profile_of_the_chart() -> None:
    [manifest] = [yaml.safe_load(block.text) for block in blocks(KIND) if block.title]
    manifest["metadata"]["namespace"] = "default"
    created = EmbeddedCluster().create("pods", manifest)
    configured = only(rendered({}), "ConfigMap")["data"]
    names = [
        profile["schedulerName"]
        for text in configured.values()
        for document in yaml.safe_load_all(text)
        for profile in (document or {}).get("profiles", ())
    ]
    assert names == [created["spec"]["schedulerName"]]


def test_asched_commands_parse() -> None:
    lines = kind_lines("asched")
    lines += re.findall(r"-- (asched .*)$", "\n".join(kind_lines("kubectl")), re.M)
    assert len(lines) == 3
    for line in lines:
        parsed(line)
