"""Reading workload definitions and templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import workload_files as w
from benchmarks.templates import Template
from benchmarks.workload_files import WorkloadError

CASE = """
- name: Basic
  defaultPodTemplatePath: pod.yaml
  workloadTemplate:
  - opcode: createNodes
    countParam: $initNodes
    labelNodePrepareStrategy: {labelKey: zone, labelValues: [a, b]}
  - opcode: sleep
    durationParam: $pause
  - opcode: createPods
    count: 7
    collectMetrics: true
  workloads:
  - {name: Small, labels: [short], params: {initNodes: 3, pause: 500ms}}
  - {name: Large, labels: [performance], threshold: 270, params: {initNodes: 30, pause: 2m}}
- name: Other
  workloadTemplate:
  - opcode: barrier
  workloads:
  - {name: Only}
"""
FOLDERS = ("misc", "affinity", "topology_spreading", "volumes", "event_handling")


@pytest.fixture
def workloads(tmp_path: Path) -> list[w.Workload]:
    path = tmp_path / "config.yaml"
    path.write_text(CASE)
    return w.load(path)


def test_load_returns_all_cases_and_sizes(workloads: list[w.Workload]) -> None:
    assert [each.name for each in workloads] == ["Basic/Small", "Basic/Large", "Other/Only"]


def test_parameters_set_counts_and_durations(workloads: list[w.Workload]) -> None:
    small, large, _ = workloads
    nodes, pause, pods = small.case.workload_template
    assert isinstance(nodes, w.CreateNodes)
    assert isinstance(pause, w.Sleep)
    assert isinstance(pods, w.CreatePods)
    assert nodes.label_node_prepare_strategy == w.NodeLabels("zone", ("a", "b"))
    assert [each.count(nodes) for each in (small, large)] == [3, 30]
    assert [each.duration_s(pause) for each in (small, large)] == [0.5, 120.0]
    assert large.count(pods) == 7


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Basic/Small", "Basic/Small"),
        ("Basic", "Basic/Large"),  # the size that Kubernetes' CI measures
        ("Other", "Other/Only"),
        ("Only", "Other/Only"),
    ],
)
def test_find_accepts_name_case_or_size(workloads: list[w.Workload], name: str, found: str) -> None:
    assert w.find(workloads, name).name == found


def test_unknown_name_error_lists_available_workloads(workloads: list[w.Workload]) -> None:
    with pytest.raises(WorkloadError, match=r"unknown workload 'Medium'; available: Basic/Small, "):
        w.find(workloads, "Medium")


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("opcode: barrier", "opcode: fly", "fly"),
        ("opcode: barrier", "opcode: barrier\n    wings: 2", "wings"),
        ("count: 7", "count: many", "int"),
    ],
)
def test_invalid_definition_is_rejected(
    tmp_path: Path, before: str, after: str, error: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CASE.replace(before, after))
    with pytest.raises(WorkloadError, match=error):
        w.load(path)


def test_missing_parameter_is_error(workloads: list[w.Workload]) -> None:
    with pytest.raises(WorkloadError, match=r"Other/Only: unknown parameter \$initNodes"):
        workloads[2].count(w.CreateNodes(count_param="$initNodes"))


@pytest.mark.parametrize("text", ["", "fast", "5", "3 years"])
def test_duration_without_number_and_unit_is_error(workloads: list[w.Workload], text: str) -> None:
    with pytest.raises(WorkloadError, match="is not a duration"):
        workloads[0].duration_s(w.Sleep(duration=text))


class TestTemplates:
    def rendered(self, folder: Path, text: str, index: int = 0, count: int = 1) -> object:
        path = folder / "template.yaml"
        path.write_text(text)
        return Template(path).render(index, count)

    @pytest.mark.parametrize(
        ("expression", "value"),
        [
            ("{{.Index}}", 25),
            ("{{ .Count }}", 40),
            ("{{ DivideInt .Index 10 }}", 2),
            ("{{ Mod .Index 12 }}", 1),
            ("{{ DivideInt 30000 .Count }}Mi", "750Mi"),
            ("{{ AddInt .Index 1 }}", 26),
        ],
    )
    def test_render_evaluates_expressions(
        self, tmp_path: Path, expression: str, value: object
    ) -> None:
        assert self.rendered(tmp_path, f"a: {expression}", 25, 40) == {"a": value}

    @pytest.mark.parametrize(
        "expression", ["{{ .Name }}", "{{ Fly 1 2 }}", "{{ Mod .Index 0 }}", "{{ a b c d }}"]
    )
    def test_invalid_expression_is_error(self, tmp_path: Path, expression: str) -> None:
        with pytest.raises(WorkloadError, match="cannot evaluate"):
            self.rendered(tmp_path, f"a: {expression}")

    def test_rendered_objects_share_no_data(self, tmp_path: Path) -> None:
        path = tmp_path / "template.yaml"
        path.write_text("labels: {}")
        template = Template(path)
        template.render(0, 2)["labels"]["changed"] = "yes"
        assert template.render(1, 2) == {"labels": {}}

    def test_missing_template_file_is_error(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="No such file"):
            Template(tmp_path / "nowhere.yaml")


@pytest.mark.shared
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_definitions_are_supported(shared_dir: Path, folder: str) -> None:
    workloads = w.load(shared_dir / "scheduler_perf" / folder / "performance-config.yaml")
    measured = [each for each in workloads if w.PERFORMANCE in each.size.labels]
    assert measured
    for workload in measured:
        for operation in workload.case.workload_template:
            if isinstance(operation, w.CreatePods):
                assert workload.count(operation) > 0
