"""The outputs about groups in docs/how-to (explain, history) are those of the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from asched.audit.pod_group.forms import (
    DomainShortage,
    GroupChange,
    GroupChangeKind,
    GroupReasonKind,
    PodGroupExplanation,
    RecordedGroupAttempt,
    RejectedNodes,
)
from asched.audit.pod_group.history import GroupMemberHistory, PodGroupHistory
from tests.docs.walkthrough import COLUMNS
from tests.ui.serving import invoke

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "groups"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, simulated."""
    file = tmp_path_factory.mktemp("groups") / "journal.db"
    scenario, config = EXAMPLE / "scenario.yaml", EXAMPLE / "config.yaml"
    code, _, err = invoke(
        "simulate", str(scenario), "--config", str(config), "--journal", str(file)
    )
    assert code == 0, err
    return file


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("explain.md", "explain --group ml/training --attempt 1"),
        ("history.md", "history --group ml/training"),
    ],
)
def test_output_is_on_the_page(
    journal: Path, page: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    code, out, err = invoke(*command.split(), "--journal", str(journal))
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in f"$ asched {command}\n{out}".splitlines()]
    shown = "\n".join(line for line in lines if line)
    assert f"```text\n{shown}\n```" in (DOCS / "how-to" / page).read_text(), shown


def outlines() -> dict[str, Any]:
    """The outlines of JSON in history.md by key, with empty lists for omitted elements."""
    lines = re.findall(r"^    (\{.*\})$", (DOCS / "how-to" / "history.md").read_text(), re.M)
    shown = [json.loads(line.replace("[...]", "[]")) for line in lines]
    return {key: value for each in shown for key, value in each.items()}


@pytest.mark.parametrize("command", ["a-0", "training-0", "--group ml/training"])
def test_json_has_the_form_of_an_outline(journal: Path, command: str) -> None:
    words = ("history", *command.split(), "--journal", str(journal), "-o", "json")
    code, out, err = invoke(*words)
    assert (code, err) == (0, "")
    ((top, found),) = json.loads(out).items()
    wanted = outlines()[top]
    if isinstance(wanted, list):
        (wanted,), (found, *_) = wanted, found
    omitted = {*found} - {*wanted}
    assert {*wanted} <= {*found}
    assert all(isinstance(found[key], type(value)) for key, value in wanted.items())
    assert not omitted or top == "group"


@pytest.mark.parametrize(
    ("page", "struct"),
    [
        ("explain.md", PodGroupExplanation),
        ("explain.md", DomainShortage),
        ("explain.md", RejectedNodes),
        ("explain.md", GroupChange),
        ("explain.md", RecordedGroupAttempt),
        ("history.md", PodGroupHistory),
        ("history.md", GroupMemberHistory),
    ],
)
def test_every_field_is_on_the_page(page: str, struct: type) -> None:
    text = (DOCS / "how-to" / page).read_text()
    fields: tuple[str, ...] = struct.__struct_encode_fields__  # type: ignore[attr-defined]
    assert [field for field in fields if f"`{field}`" not in text] == []


@pytest.mark.parametrize("kind", [GroupReasonKind, GroupChangeKind])
def test_every_value_is_on_the_page(kind: type[GroupReasonKind | GroupChangeKind]) -> None:
    text = (DOCS / "how-to" / "explain.md").read_text()
    assert [each.value for each in kind if f"`{each.value}`" not in text] == []
