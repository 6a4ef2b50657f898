"""``asched diff`` on journal files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from asched.audit.whatif.comparison import DiffReport
from asched.audit.whatif.measures import node_of
from asched.audit.whatif.recorded_history import recorded_history
from asched.cli.main import app
from asched.journal.opening import open_journal
from tests.audit.recording import REGISTRY, Recording, node, pod
from tests.audit.whatif.histories import simulated, store_by_turns
from tests.daemon.world import world

ROOT = Path(__file__).resolve().parents[2]
MOST_ALLOCATED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - pluginConfig:
      - name: NodeResourcesFit
        args: {scoringStrategy: {type: MostAllocated}}
    plugins:
      score: {disabled: [{name: NodeResourcesBalancedAllocation}]}
"""


def two_nodes() -> Recording:
    """Two pods placed in sequence on two empty nodes, and an unschedulable one."""
    recording = Recording()
    recording.see(node("n0", "8"), node("n1", "8"))
    for number in range(2):
        recording.turn(10.0 * (number + 1))
        recording.see(pod(f"<i>p{number}", "2"))
        recording.bind(recording.decide())
    recording.turn(30)
    recording.see(pod("huge", "20"))
    recording.decide()
    recording.turn(40)
    recording.lose(pod("<i>p0"))
    recording.decide()
    return recording


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await store_by_turns(two_nodes().records, store)
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(MOST_ALLOCATED)
    return path


def run(journal: Path, *args: str | Path) -> tuple[int, str, str]:
    words = ["diff", "--journal", str(journal), *map(str, args)]
    result = CliRunner().invoke(app, words, prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def found_in(journal: Path, *args: str | Path) -> Any:
    code, out, err = run(journal, "-o", "json", *args)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_recorded_configuration_gives_no_differences(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    file.write_text(MOST_ALLOCATED.partition("profiles:")[0])
    found = found_in(journal, "--config", file)
    assert found["placedElsewhere"] == []
    assert found["placedInBaselineOnly"] == found["placedInCandidateOnly"] == []
    assert found["baseline"]["figures"] == found["candidate"]["figures"]
    # No decision depended on durations, so the recorded figures are equal too.
    assert found["recorded"]["figures"] == found["baseline"]["figures"]


def test_most_allocated_packs_pods(journal: Path, config: Path) -> None:
    found = found_in(journal, "--config", config)
    [moved] = found["placedElsewhere"]
    assert (moved["pod"], {moved["baseline"], moved["candidate"]}) == (
        "default/<i>p1",
        {"n0", "n1"},
    )
    assert (found["baseline"]["name"], found["candidate"]["name"]) == (
        "recorded configuration", "new.yaml",
    )  # fmt: skip
    for run_found in (found["baseline"], found["candidate"], found["recorded"]):
        figures = run_found["figures"]
        assert (figures["pods"], figures["placed"], figures["pendingAtEnd"]) == (3, 2, 1)
        # Of 16 cores, two are used from 10 s and four from 20 s until 40 s.
        assert figures["resources"]["cpu"]["utilisation"]["mean"] == pytest.approx(
            (10 * 2 + 20 * 4) / (40 * 16)
        )
    assert found["begin"] == "2026-01-01T00:00:00Z"
    assert found["end"] == "2026-01-01T00:00:40Z"


def test_plugin_changes_apply_to_recorded_configuration(journal: Path, config: Path) -> None:
    found = found_in(
        journal, "--plugins", "-NodeResourcesFit,-NodeResourcesBalancedAllocation,+NodeResourcesFit"
    )
    assert found["candidate"]["name"].startswith("recorded configuration with -NodeResourcesFit")
    assert found["placedElsewhere"] == []
    # Without the filter the oversized pod fits.
    found = found_in(journal, "--config", config, "--plugins", "-NodeResourcesFit")
    [placed] = found["placedInCandidateOnly"]
    assert placed["pod"] == "default/huge"
    assert placed["message"].startswith("0/2 nodes are available: 2 Insufficient cpu.")


def test_table_output(journal: Path, config: Path) -> None:
    code, out, err = run(journal, "--config", config)
    assert (code, err) == (0, "")
    assert out.startswith("2026-01-01 00:00:00 to 2026-01-01 00:00:40 UTC, 2 nodes")
    rows = {" ".join(line.split()[:-3]): line.split()[-3:] for line in out.splitlines() if line}
    assert rows["pods to place"] == ["3", "3", "3"]
    assert rows["pending at the end"] == ["1", "1", "1"]
    assert rows["cpu utilisation, mean"] == ["15.6%", "15.6%", "15.6%"]
    assert "1 pod(s) placed differently" in out
    assert "default/<i>p1" in out
    assert "0 pod(s) placed only by: new.yaml" in out


def test_period_limits_the_history(journal: Path, config: Path) -> None:
    found = found_in(
        journal, "--config", config, "--since", "2026-01-01T00:00:15Z", "--until",
        "2026-01-01T00:00:35Z",
    )  # fmt: skip
    assert (found["begin"], found["end"]) == ("2026-01-01T00:00:15Z", "2026-01-01T00:00:35Z")
    assert found["baseline"]["figures"]["pods"] == 2


def test_html_report_escapes_names(journal: Path, config: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, err = run(journal, "--config", config, "--html", page)
    assert (code, err) == (0, "")
    assert "placed differently" in out
    text = page.read_text()
    assert "<h1>What if: new.yaml</h1>" in text
    assert "default/&lt;i&gt;p1" in text
    assert "<i>" not in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "nothing to compare with: give --config, --plugins, --add-nodes or --remove-nodes"),
        (("--plugins", "Nonsense=2"), '--plugins: unknown plugin "Nonsense"'),
        (("--plugins", "ImageLocality=x"), 'invalid weight "x" for ImageLocality'),
        (("--plugins", "-DefaultBinder"), "would have no Bind plugin"),
        (("--config", "no-such-file.yaml"), "no-such-file.yaml: cannot be read"),
        (("--plugins", "+ImageLocality", "--since", "soon"), '"soon" is not a time'),
        (
            ("--plugins", "+ImageLocality", "--since", "2026-01-02", "--until", "2026-01-01"),
            "--until 2026-01-01 is before --since 2026-01-02",
        ),
        (
            ("--plugins", "+ImageLocality", "--since", "2027-01-01"),
            "the journal has no records of that time; it covers 2026-01-01T00:00:00Z",
        ),
        (("--plugins", "+ImageLocality", "--html", "no/such/folder.html"), "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(journal: Path, args: Sequence[str], message: str) -> None:
    code, out, err = run(journal, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_configuration_without_matching_profile_is_rejected(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(
        MOST_ALLOCATED.replace("- pluginConfig", "- schedulerName: mine\n    pluginConfig")
    )
    code, _, err = run(journal, "--config", file)
    assert code == 2
    assert err == (
        "asched: other.yaml has no profile default-scheduler, which pods of the history name; its"
        " profiles are mine\n"
    )


def test_missing_journal_is_reported(tmp_path: Path, config: Path) -> None:
    code, _, err = run(tmp_path / "none.db", "--config", config)
    assert code == 2
    assert "none.db" in err


async def test_history_of_a_real_daemon_is_reproduced(tmp_path: Path) -> None:
    async with world(tmp_path, nodes=3, cpu="4") as w:
        async with w.daemon():
            for number in range(6):
                w.add_pod(f"p{number}", "1")
                await w.until(lambda: not w.unbound())
            w.cluster.delete("pods", "p0", namespace="default")
            w.add_pod("last", "4")
            await w.until(lambda: "Insufficient cpu" in w.message("last"))
        nodes = {f"p{number}": w.node_of(f"p{number}") for number in range(1, 6)}
    async with open_journal(str(tmp_path / "journal.db"), read_only=True) as store:
        history = await recorded_history(store, REGISTRY.load)
    recorded = {one.pod.name: node_of(one) for one in history.recorded.pods}
    assert recorded == nodes | {"p0": recorded["p0"], "last": ""}
    assert {one.pod.name: node_of(one) for one in simulated(history).pods} == recorded
    assert history.scheduler.latencies.bind_ns > 0


# -- docs/how-to/what-if.md -----------------------------------------------------------------------


def fields(kind: Any) -> set[str]:
    """The names of all JSON fields of a struct and its nested structs."""
    found: set[str] = set()
    if isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            found |= {field.encode_name} | fields(field.type)
    for part in ("types", "item_types"):
        for inner in getattr(kind, part, ()):
            found |= fields(inner)
    for part in ("item_type", "value_type"):
        if hasattr(kind, part):
            found |= fields(getattr(kind, part))
    return found


def test_every_json_field_is_documented() -> None:
    text = (ROOT / "docs" / "how-to" / "what-if.md").read_text()
    names = fields(msgspec.inspect.type_info(DiffReport))
    assert len(names) > 30
    assert not {name for name in names if f"`{name}`" not in text}
