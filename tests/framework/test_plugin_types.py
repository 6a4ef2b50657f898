"""mypy rejects plugins with wrong signatures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HEAD = """
from typing import ClassVar

from asched.framework import (
    SUCCESS, Arguments, BindingClient, CycleState, FilterAllPlugin, FilterPlugin, Int64Column,
    NodeInfo, Nodes, PermitPlugin, PermitResult, PodInfo, PreBindPlugin, Scope, ScoreAllPlugin,
    ScorePlugin, Status, FilterResult,
)
"""

RIGHT = """
class Right(FilterPlugin, ScorePlugin):
    name: ClassVar[str] = "Right"
    api_version: ClassVar[int] = 1
    scope: ClassVar[Scope] = Scope.NODE

    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS if node.free("cpu") else Status.unschedulable("full")

    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return node.pod_count
"""

WRONG = {
    "filter returns bool": """
class A(FilterPlugin):
    def filter(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> bool:
        return True
""",
    "score without state": """
class B(ScorePlugin):
    def score(self, pod: PodInfo, node: NodeInfo) -> int:
        return 1
""",
    "score returns float": """
class C(ScorePlugin):
    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> float:
        return 0.5
""",
    "filter_all returns a single status": """
class D(FilterAllPlugin):
    def filter_all(self, state: CycleState, pod: PodInfo, nodes: Nodes) -> Status:
        return SUCCESS
""",
    "filter_all takes a single node": """
class E(FilterAllPlugin):
    def filter_all(self, state: CycleState, pod: PodInfo, nodes: NodeInfo) -> FilterResult:
        raise NotImplementedError
""",
    "pre_bind is not asynchronous": """
class F(PreBindPlugin):
    def pre_bind(self, client: BindingClient, pod: PodInfo, node_name: str) -> Status:
        return SUCCESS
""",
    "permit returns a status": """
class G(PermitPlugin):
    def permit(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:
        return SUCCESS
""",
    "api_version is a string": """
class H(ScorePlugin):
    api_version: ClassVar[str] = "1"
""",
    "scope is a string": """
class I(ScorePlugin):
    scope = "node"
""",
    "unknown attribute of a node": """
class J(ScorePlugin):
    def score(self, state: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return node.free_cpu
""",
    "private name": """
from asched.framework import NodeInformation
""",
}


def test_wrong_signatures_are_type_errors(tmp_path: Path) -> None:
    """One mypy run for all, because imports take most of its time."""
    right = tmp_path / "right.py"
    right.write_text(HEAD + RIGHT)
    good = [right]
    for page in ("index", "testing"):
        text = (ROOT / "docs" / "how-to" / "plugins" / f"{page}.md").read_text()
        good.append(tmp_path / f"page_{page}.py")
        good[-1].write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)))
    files = {}
    for number, (what, source) in enumerate(WRONG.items()):
        files[what] = tmp_path / f"wrong_{number}.py"
        files[what].write_text(HEAD + source)
    # The cache is that of `make types`, which comes before the tests.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, [*good, *files.values()])],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    refused = {line.partition(":")[0] for line in done.stdout.splitlines() if ": error: " in line}
    refused_names = {Path(path).name for path in refused}
    assert [what for what, file in files.items() if file.name not in refused_names] == []
    assert [file.name for file in good if file.name in refused_names] == [], done.stdout
