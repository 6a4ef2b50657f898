"""docs/how-to/plugins/reads.md: its plugin works, and its role is what such a plugin needs."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import yaml

from asched.framework import Plugin
from asched.model import CustomResource
from asched.testing import from_api, node, pod, run_filter, schedule
from asched.testing.profiles import profile
from tests.docs.plugin_pages import GUIDE

PAGE = (GUIDE / "reads.md").read_text()


def names() -> dict[str, Any]:
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    found: dict[str, Any] = {"__name__": "page"}
    # Without the way in which this module has its annotations.
    exec(compile(source, "reads.md", "exec", dont_inherit=True), found)
    return found


def test_plugin_reads_racks_and_annotations() -> None:
    found = names()
    plugin: type[Plugin] = found["RackLimit"]
    kind: type[CustomResource] = found["Rack"]
    rack = from_api(
        {"apiVersion": "example.com/v1", "kind": "Rack", "metadata": {"name": "n"}, "limit": 2},
        kind,
    )
    cluster = [node("n"), node("no-rack"), rack, pod("there", node="n")]
    said = run_filter(plugin, pod("one"), cluster)
    assert said["n"].is_success
    assert said["no-rack"].message == "node(s) with a full rack"
    two = pod("two", annotations={"example.com/counts-for": "2", "example.com/other": "x"})
    assert not run_filter(plugin, two, cluster)["n"].is_success
    placed = schedule(profile(plugin), [node("n"), rack], [two])
    assert placed.nodes == {"two": "n"}
    assert placed.divergence() is None


def test_role_is_for_what_the_plugin_declares() -> None:
    [text] = re.findall(r"^    apiVersion: rbac.*?(?=\n\n)", PAGE, re.S | re.M)
    [rule] = yaml.safe_load(textwrap.dedent(text))["rules"]
    definition = names()["Rack"].definition
    assert rule["apiGroups"] == [definition.group]
    assert rule["resources"] == [definition.plural]
    assert rule["verbs"] == ["list", "watch"]
