"""``asched fit``: a pod that does not exist, decided on a state of the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asched.audit.lookup import AuditError
from asched.cli.main import app
from asched.fit.answer import FitQuery, fit
from asched.fit.forms import FitAnswer
from asched.fit.manifest import object_of
from asched.framework.sessions import SessionSpec
from asched.journal.memory import MemoryStore
from asched.journal.opening import open_journal
from asched.model.resources import Resource, decode
from asched.model.workloads import PriorityClass
from asched.state.session_records import SessionsLoaded
from tests.audit.recording import BEGIN_NS, REGISTRY, Recording, node, pod

Object = dict[str, Any]


_SPEC = {"containers": [{"name": "c", "image": "app"}]}


def manifest(cpu: str = "2", name: str = "try", **spec: Any) -> Object:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": name}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }  # fmt: skip


def recorded() -> Recording:
    """``full`` has no room; ``large`` joins after a second."""
    recording = Recording()
    urgent = decode(Resource.PRIORITY_CLASSES, b'{"metadata": {"name": "urgent"}, "value": 1000}')
    assert isinstance(urgent, PriorityClass)
    recording.see(urgent, node("full", "2"), pod("first", "2"))
    recording.bind(recording.decide())
    recording.turn(1.0)
    recording.see(node("large", "8", taint="dedicated"), node("spare", "4"))
    recording.turn(2.0)
    return recording


@pytest.fixture
async def journal() -> MemoryStore:
    return await recorded().journal()


async def answer(journal: MemoryStore, pod: Object, at_s: float | None = None) -> FitAnswer:
    at_ns = None if at_s is None else BEGIN_NS + round(at_s * 1e9)
    query = FitQuery(object_of(pod, "manifest"))
    return await fit(journal, query, REGISTRY.load, at_ns=at_ns)


async def test_pod_fits_now_and_did_not_before(journal: MemoryStore) -> None:
    head = await journal.head()
    now = await answer(journal, manifest())
    assert (now.fits, now.nodes, now.seq) == (True, ("spare",), head.seq)
    assert now.sentence == "The pod would run on spare; 1 of 3 nodes fit."
    before = await answer(journal, manifest(), at_s=0.5)
    assert (before.fits, before.nodes) == (False, ())
    assert before.sentence.startswith("The pod would not run: 0/1 nodes are available")
    assert before.explanation.unblocking
    assert await journal.head() == head


async def test_answer_is_the_decision_that_follows(journal: MemoryStore) -> None:
    """The scheduler decides the same for the pod when it is created."""
    tolerant = {"tolerations": [{"operator": "Exists"}]}
    cases: list[tuple[str, Object]] = [("2", {}), ("5", {}), ("5", tolerant)]
    for cpu, spec in cases:
        found = await answer(journal, manifest(cpu, **spec))
        recording = recorded()
        recording.see(pod("try", cpu, **spec))
        (decision,) = recording.decide()
        node_name = getattr(decision, "node", "")
        assert (node_name in found.nodes) == found.fits
        assert bool(node_name) == found.fits


async def test_defaults_and_admission_apply(journal: MemoryStore) -> None:
    limited = manifest()
    limited["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "6"}}
    found = await answer(journal, limited)
    assert not found.fits
    preempting = await answer(journal, manifest("2", priorityClassName="urgent"), at_s=0.5)
    assert "preemption: 0/1" not in preempting.sentence
    unknown = await answer(journal, manifest(priorityClassName="other", priority=5))
    assert unknown.fits


async def test_existing_name_and_node_are_noted(journal: MemoryStore) -> None:
    found = await answer(journal, manifest(name="first", nodeName="full"))
    assert found.fits
    assert found.explanation.name == "first-1"
    assert found.notes == (
        "spec.nodeName is ignored",
        "pod default/first exists; the answer is for another one of that form",
    )


async def test_gated_pod(journal: MemoryStore) -> None:
    found = await answer(journal, manifest(schedulingGates=[{"name": "example.com/quota"}]))
    assert not found.fits
    assert found.sentence.startswith("The pod would be gated: ")
    assert "example.com/quota" in found.sentence


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "Deployment"}, "Deployment has apiVersion v1; expected apps/v1"),
        ({"kind": "Pods"}, "unknown kind Pods; did you mean Pod?"),
        ({"kind": "ConfigMap"}, "the manifest creates no pods: it has ConfigMap default/try"),
        ({"kind": None}, "expected a Kubernetes object, but kind is missing"),
        ({"spec": None}, "Pod default/try: spec is missing"),
        ({"spec": {"containers": []}}, "the API server would reject the pod"),
        ({"spec": {**_SPEC, "priorityClassName": "no"}}, "the API server would reject the pod"),
        ({"spec": {**_SPEC, "schedulerName": "default-schedule"}}, "did you mean default-sched"),
        ({"metadata": {"name": "Not A Name"}}, "the API server would reject the pod"),
    ],
)  # fmt: skip
async def test_wrong_manifest_is_one_line(
    journal: MemoryStore, changed: Object, message: str
) -> None:
    with pytest.raises(AuditError) as caught:
        await answer(journal, {**manifest(), **changed})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_pods_of_batch_sessions_name_their_actions() -> None:
    recording = recorded()
    actions = ("optimal", "allocate")
    recording.add(SessionsLoaded((SessionSpec("gangs", actions, ()),)))
    store = await recording.journal()
    with pytest.raises(AuditError, match=r"gangs \(actions: optimal, allocate\) place these pods"):
        await answer(store, manifest(schedulerName="gangs"))


@pytest.fixture
async def stored(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    async with open_journal(str(path)) as store:
        await recorded().store_in(store)
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fit", *arguments], prog_name="asched")
    return result.exit_code, result.stdout, result.stderr


def test_command(stored: Path, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(manifest()))
    code, out, err = run(str(file), "--journal", str(stored))
    assert (code, err) == (0, "")
    assert out.startswith("The pod would run on spare")
    code, out, _ = run(str(file), "--journal", str(stored), "--at", "2026-01-01T00:00:00.5Z")
    assert code == 1
    assert "more on the node" in out
    code, out, _ = run(str(file), "--journal", str(stored), "-o", "json")
    assert json.loads(out)["nodes"] == ["spare"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no object; expected a Pod or a workload"),
        ("\n\na: 1\n---\nb: 2\n", "pod.yaml:3: expected a Kubernetes object"),
        ("a: [", "not valid YAML"),
        ("- 1", "pod.yaml:1: expected an object with apiVersion and kind"),
    ],
)
def test_wrong_file_is_one_line(stored: Path, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    code, out, err = run(str(file), "--journal", str(stored))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_feature_gates_need_the_cluster(stored: Path, tmp_path: Path) -> None:
    """The answer on a journal is that of its recorded gates."""
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(manifest()))
    code, out, err = run(str(file), "--journal", str(stored), "--feature-gates", "A=true")
    assert (code, out) == (2, "")
    assert err.endswith("--config and --feature-gates are for --cluster\n")
