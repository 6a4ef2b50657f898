"""The pods that workloads of a manifest create."""

from __future__ import annotations

from typing import Any

import pytest

from asched.config.file import parse_yaml
from asched.fit.answer import FitQuery, fit
from asched.fit.forms import FitAnswer
from asched.fit.manifest import ManifestError, objects_of
from asched.framework.runtime.extenders import ExtenderSpec
from tests.audit.group_recording import GroupRecording, members
from tests.audit.recording import REGISTRY, Recording, node, pod

SPEC = "{containers: [{name: c, image: app, resources: {requests: {cpu: '1'}}}]}"


def nodes() -> Recording:
    recording = Recording()
    recording.see(*(node(f"n{index}") for index in range(3)), node("tainted", taint="dedicated"))
    return recording


async def answer(text: str, recording: Recording | None = None, **query: Any) -> FitAnswer:
    journal = await (recording or nodes()).journal()
    asked = FitQuery(objects_of(parse_yaml(text, "m.yaml"), "m.yaml"), **query)
    return await fit(journal, asked, REGISTRY.load)


def workload(kind: str, version: str, fields: str, template: str = SPEC) -> str:
    labels = "{app: web}"
    selector = labels if kind == "ReplicationController" else f"{{matchLabels: {labels}}}"
    return f"""
apiVersion: {version}
kind: {kind}
metadata: {{name: web, namespace: shop}}
spec:
  selector: {selector}
  template: {{metadata: {{labels: {labels}}}, spec: {template}}}
  {fields}
"""


@pytest.mark.parametrize(
    ("kind", "version", "fields", "count"),
    [
        ("Deployment", "apps/v1", "replicas: 4", 4),
        ("Deployment", "apps/v1", "paused: true", 1),
        ("ReplicaSet", "apps/v1", "replicas: 2", 2),
        ("ReplicationController", "v1", "replicas: 2", 2),
        ("StatefulSet", "apps/v1", "replicas: 3", 3),
        ("DaemonSet", "apps/v1", "", 3),
        ("Job", "batch/v1", "parallelism: 5", 5),
        ("Job", "batch/v1", "{parallelism: 5, completions: 2}", 2),
        ("Job", "batch/v1", "completions: 2", 1),
    ],
)
async def test_number_of_pods(kind: str, version: str, fields: str, count: int) -> None:
    braced = fields.strip("{}").replace(", ", "\n  ")
    found = await answer(workload(kind, version, braced))
    (one,) = found.workloads
    assert (one.object, one.pods, one.placed) == (f"{kind} shop/web", count, count)
    assert found.fits


async def test_cron_job_is_one_run() -> None:
    job = f"{{parallelism: 2, template: {{spec: {SPEC}}}}}"
    text = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly}\nspec:\n"
    found = await answer(f"{text}  jobTemplate: {{spec: {job}}}")
    assert found.workloads[0].pods == 2
    assert "the answer is for one run of CronJob default/nightly" in found.notes


async def test_daemon_set_gets_one_pod_on_each_node_that_it_tolerates() -> None:
    tolerant = f"{SPEC[:-1]}, tolerations: [{{operator: Exists}}]}}"
    found = await answer(workload("DaemonSet", "apps/v1", "", tolerant))
    assert [each.node for each in found.workloads[0].nodes] == ["n0", "n1", "n2", "tainted"]
    full = nodes()
    full.see(pod("old", "4", nodeName="n1"))
    found = await answer(workload("DaemonSet", "apps/v1", ""), full)
    assert (found.fits, found.workloads[0].placed) == (False, 2)


async def test_spreading_counts_the_copies() -> None:
    spread = (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname,"
        " whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]"
    )
    recording = Recording()
    for index in range(3):
        recording.see(node(f"n{index}", "8", **{"kubernetes.io/hostname": f"n{index}"}))
    template = f"{SPEC[:-1]}, {spread}}}"
    found = await answer(workload("Deployment", "apps/v1", "replicas: 6", template), recording)
    assert [(each.node, each.pods) for each in found.workloads[0].nodes] == [
        ("n0", 2), ("n1", 2), ("n2", 2),
    ]  # fmt: skip


async def test_stateful_set_has_claims_of_its_own() -> None:
    volumes = """replicas: 2
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: late, resources: {requests: {storage: 1Gi}}}
"""  # noqa: E501
    storage = """
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: example.com/disk
volumeBindingMode: WaitForFirstConsumer
"""
    stateful = workload("StatefulSet", "apps/v1", volumes)
    assert (await answer(stateful + storage)).fits
    without = await answer(stateful)
    assert not without.fits
    assert "PersistentVolumeClaim" in without.workloads[0].message


async def test_objects_share_the_room_in_their_order() -> None:
    text = "---".join(
        workload("Deployment", "apps/v1", "replicas: 7").replace("name: web", f"name: {name}", 1)
        for name in ("first", "second")
    )
    found = await answer(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n---{text}")
    assert [one.placed for one in found.workloads] == [7, 5]
    assert found.sentence.startswith("12 of 14 pods would run; the others would not: 0/4 nodes")
    assert "scheduling does not read ConfigMap default/c" in found.notes


GANG = """
apiVersion: scheduling.k8s.io/{version}
kind: Workload
metadata: {{name: train}}
spec:
  podGroupTemplates:
  - name: workers
    schedulingPolicy: {{gang: {{minCount: 3}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  parallelism: 3
  template:
    spec:
      schedulingGroup: {{podGroupName: train-workers}}
      restartPolicy: Never
      containers: [{{name: c, image: app, resources: {{requests: {{cpu: "{cpu}"}}}}}}]
"""


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
async def test_gang_of_a_workload_runs_whole_or_not_at_all(whole: bool, version: str) -> None:
    for cpu, fits in (("3", True), ("5", False)):
        recording = GroupRecording(whole=whole)
        recording.see(node("a"), node("b"), node("c"))
        found = await answer(GANG.format(version=version, cpu=cpu), recording)
        assert found.fits is fits, found
        assert found.workloads[0].placed == (3 if fits else 0)
        assert len(found.groups) == (0 if fits else 1)
        (note,) = found.notes
        assert note.startswith("PodGroup default/train-workers is created from template workers")
    two = GroupRecording(whole=whole)
    two.see(node("a"), node("b"))
    found = await answer(GANG.format(version=version, cpu="3"), two)
    assert (found.fits, found.workloads[0].placed) == (False, 0)
    assert found.change is not None
    assert found.change.runs == "group"
    assert found.change.summary == "lower minCount from 3 to 2"


NAMELESS = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\nmetadata: {name: a}", "m.yaml:1: expected a Kubernetes object"),
        (workload("Deployment", "apps/v1beta1", ""), "m.yaml:2: Deployment has apiVersion"),
        (workload("Deploymnt", "apps/v1", ""), "m.yaml:3: unknown kind Deploymnt; did you mean"),
        (workload("Deployment", "apps/v1", "replicas: many"), "m.yaml:8: Deployment shop/web:"),
        (workload("Deployment", "apps/v1", "", "[]"), "m.yaml:7: Deployment shop/web: spec.templ"),
        (workload("Deployment", "apps/v1", "", "{container: []}"), "m.yaml:2: Deployment shop/web"),
        (workload("Job", "batch/v1", "parallelism: 10001"), "creates more than 10000 pods"),
        (workload("Deployment", "apps/v1", "replicas: 0"), "the manifest creates no pods"),
        (NAMELESS, "m.yaml:4: Pod: metadata has no name"),
        ("a: 1\na: 2", "m.yaml:1: a: duplicate key"),
    ],
)  # fmt: skip
async def test_wrong_object_is_one_line_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        await answer(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_group_admits_pods_that_wait_for_it() -> None:
    """The pods exist, their PodGroup does not; another pod waits, too, and is none of it."""
    group = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: late}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
"""
    for cpu, fits in (("3", True), ("5", False)):
        recording = GroupRecording()
        recording.see(node("a"), node("b"), *members("late", 2, cpu), pod("alone", "9"))
        recording.decide()
        found = await answer(group, recording)
        (workload,) = found.workloads
        assert (workload.object, workload.pods) == ("pods of the cluster", 2)
        assert (found.fits, workload.placed) == (fits, 2 if fits else 0)


async def test_extenders_are_not_called() -> None:
    recording = Recording(ExtenderSpec("http://extender.example", filter_verb="filter"))
    recording.see(node("a"), pod("asks", "1"))
    recording.decide()
    found = await answer(workload("Deployment", "apps/v1", "replicas: 3"), recording)
    assert found.workloads[0].placed == 3
    assert "extenders are not called" in found.notes
