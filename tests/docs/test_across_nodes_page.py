"""docs/how-to/plugins/across-nodes.md: its plugin, and what the page says about it."""

from __future__ import annotations

import contextlib
import io
import itertools
from pathlib import Path
from typing import Any

from asched.framework import Status
from asched.testing import node, pod, pods, profile, run_filter, schedule
from asched.testing.checks import check_plugin
from tests.docs.test_examples import example
from tests.docs.walkthrough import Block, blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "plugins" / "across-nodes.md").read_text()
SOURCE = (DOCS / "examples" / "rack_quota.py").read_text()
RACK = "topology.kubernetes.io/rack"
WEB = {"app": "web"}

RackQuota = example("rack_quota", "RackQuota")


def python_blocks() -> list[str]:
    return [block.text for block in blocks(PAGE) if block.kind == "python"]


def racks(*names: str) -> list[Any]:
    """Two nodes in each rack."""
    return [node(f"{name}-{n}", labels={RACK: name}) for name in names for n in (1, 2)]


def test_parts_are_those_of_the_file() -> None:
    parts = [text for text in python_blocks() if text.startswith("    def ")]
    assert len(parts) == 5
    assert [text for text in parts if text.rstrip() not in SOURCE] == []


def test_programs_print_what_the_page_shows() -> None:
    names: dict[str, Any] = {"RackQuota": RackQuota}
    shown: list[Block] = [*blocks(PAGE)]
    printed = 0
    for program, output in itertools.pairwise(shown):
        if program.kind == "python" and output.kind == "text":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(program.text, names)
            assert stream.getvalue().strip() == output.text.strip()
            printed += 1
    assert printed == 2


def test_plugin_follows_the_contract() -> None:
    assert [finding for finding in check_plugin(RackQuota) if finding.outcome == "failed"] == []


def test_nodes_without_a_rack_and_other_apps_are_not_limited() -> None:
    there = [pod(f"web-{n}", labels=WEB, node="a-1") for n in range(2)]
    cluster = [*racks("a", "b"), node("loose"), *there]
    answers = run_filter(RackQuota, pod("p", labels=WEB), cluster)
    assert {name for name, status in answers.items() if not status.is_success} == {"a-1", "a-2"}
    assert isinstance(answers["a-1"], Status)
    other = run_filter(RackQuota, pod("p", labels={"app": "db"}), cluster)
    assert all(status.is_success for status in other.values())


def test_pod_is_retried_when_one_of_its_app_ends() -> None:
    short = [pod(f"web-{n}", labels=WEB, node="a-1", priority=0) for n in range(2)]
    found = schedule(profile(RackQuota), [*racks("a"), *short], [pod("p", labels=WEB, priority=5)])
    assert found.nodes["p"].startswith("a-")
    assert len(found.nodes) == 2
    assert found.divergence() is None


def test_limit_is_an_argument() -> None:
    arguments = RackQuota.arguments
    assert arguments is not None
    setup = profile(RackQuota, args_by_plugin={"RackQuota": arguments(most=1)})
    found = schedule(setup, racks("a", "b"), pods(3, "web", labels=WEB))
    assert len(found.nodes) == 2
    assert {name.partition("-")[0] for name in found.nodes.values()} == {"a", "b"}
