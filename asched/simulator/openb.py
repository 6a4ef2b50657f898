"""The openb trace: a production GPU cluster's nodes and pods, from two CSV tables.

The tables are those of Alibaba's cluster-trace-gpu-v2023 (``openb_node_list_*.csv`` and
``openb_pod_list_*.csv``). A GPU counts as a thousand of :data:`GPU_MILLI`, so that pods that share one
ask for less. That is counted per node: on which of its GPUs a share lies is a plugin's business
(``plugins/asched-gpu``).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from asched.model.meta import ObjectMeta
from asched.model.node import HOSTNAME_LABEL, Node, NodeCondition, NodeStatus
from asched.model.pod import Affinity, Container, NodeAffinity, Pod, PodSpec, ResourceRequirements
from asched.model.quantity import NS_PER_S
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from asched.simulator.trace import TraceEvent, WorkloadTrace, ObjectSet, PodCreated, PodDeleted
from asched.simulator.pods import moment

GPU_MILLI: Final = "alibabacloud.com/gpu-milli"
"""The resource that GPUs are counted in, in thousandths of a GPU."""
GPU_COUNT: Final = "alibabacloud.com/gpu-count"
"""The annotation of a pod that takes shares of several GPUs, for plugins that look at them."""
GPU_MODEL_LABEL: Final = "alibabacloud.com/gpu-card-model"
QOS_LABEL: Final = "alibabacloud.com/qos"
MILLI: Final = 1000
PODS_PER_NODE: Final = "256"
"""The trace does not say; more than any of its nodes ran."""

BEGIN_NS: Final = int(datetime(2023, 1, 1, tzinfo=UTC).timestamp()) * NS_PER_S
"""The trace counts seconds from an unnamed beginning; here it begins on this day."""

_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time",
    "deletion_time", "scheduled_time",
)  # fmt: skip


class TraceError(ValueError):
    """A table cannot be used; the text says where, and what would be right."""


class Table(NamedTuple):
    """The lines of a CSV file, and what to call it in messages."""

    name: str
    lines: Iterable[str]


def history_of(nodes: Table, pods: Table, scheduler_name: str) -> WorkloadTrace:
    """The trace as a history; ``scheduler_name`` is who is to place its pods.

    All nodes are there from the beginning. A pod that was scheduled runs as long as it did in the
    trace, from wherever it is scheduled now; one that was not is deleted when it was. Raises
    :class:`TraceError`.
    """
    events: list[TraceEvent] = [
        ObjectSet(BEGIN_NS, _node(row)) for row in _rows(nodes, _NODE_COLUMNS, "sn")
    ]
    for row in _rows(pods, _POD_COLUMNS, "name"):
        events += _pod(row, scheduler_name)
    events.sort(key=lambda event: event.at_ns)
    return WorkloadTrace(tuple(events), BEGIN_NS)


class _Row(NamedTuple):
    """One line of a table, with its place for messages."""

    place: str
    cells: Mapping[str, str]

    def number(self, column: str, *, default: int | None = None) -> int:
        """A whole number that is not negative."""
        text = self.cells[column].strip()
        if not text and default is not None:
            return default
        # Some tables have been through a spreadsheet: 12.0 for 12.
        whole = text.removesuffix(".0")
        if not (whole.isascii() and whole.isdecimal()):
            wanted = "expected a whole number, 0 or more"
            raise TraceError(f"{self.place}: {column}: {wanted}, got {text!r}")
        return int(whole)

    def seconds(self, column: str) -> int:
        return BEGIN_NS + self.number(column) * NS_PER_S


def _rows(table: Table, columns: tuple[str, ...], key: str) -> Iterator[_Row]:
    reader = csv.DictReader(table.lines, restval="", strict=True)
    seen: set[str] = set()
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(
                f"{table.name}:1: no column {', '.join(missing)}; expected {', '.join(columns)}"
            )
        for cells in reader:
            row = _Row(f"{table.name}:{reader.line_num}", cells)
            name = cells[key]
            if not name or name in seen:
                what = f"{name!r} is listed twice" if name else "expected a name, got nothing"
                raise TraceError(f"{row.place}: {key}: {what}")
            seen.add(name)
            yield row
    except csv.Error as error:
        raise TraceError(f"{table.name}:{reader.line_num}: not CSV: {error}") from None


def _node(row: _Row) -> Node:
    name, model = row.cells["sn"], row.cells["model"].strip()
    allocatable: dict[str, str | int | float] = {
        "cpu": f"{row.number('cpu_milli')}m",
        "memory": f"{row.number('memory_mib')}Mi",
        "pods": PODS_PER_NODE,
    }
    labels = {HOSTNAME_LABEL: name}
    gpus = row.number("gpu", default=0)
    if gpus:
        allocatable[GPU_MILLI] = str(gpus * MILLI)
        labels[GPU_MODEL_LABEL] = model
    return Node(
        metadata=ObjectMeta(
            name=name, uid=f"openb-{name}", labels=labels, creation_timestamp=moment(BEGIN_NS)
        ),
        status=NodeStatus(
            capacity=allocatable,
            allocatable=allocatable,
            conditions=(NodeCondition(type="Ready", status="True"),),
        ),
    )


def _pod(row: _Row, scheduler_name: str) -> list[TraceEvent]:
    name, created_ns, deleted_ns = (
        row.cells["name"],
        row.seconds("creation_time"),
        row.seconds("deletion_time"),
    )
    if deleted_ns < created_ns:
        raise TraceError(f"{row.place}: deletion_time: expected no less than creation_time")
    requests: dict[str, str | int | float] = {
        "cpu": f"{row.number('cpu_milli')}m",
        "memory": f"{row.number('memory_mib')}Mi",
    }
    gpus, share = row.number("num_gpu", default=0), row.number("gpu_milli", default=0)
    if gpus * share:
        requests[GPU_MILLI] = str(gpus * share)
    shares = {GPU_COUNT: str(gpus)} if gpus > 1 and 0 < share < MILLI else {}
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    uid = f"openb-{name}"
    pod = Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="openb",
            uid=uid,
            labels={QOS_LABEL: row.cells["qos"]},
            creation_timestamp=moment(created_ns),
            declared_annotations=shares,
        ),
        spec=PodSpec(
            scheduler_name=scheduler_name,
            containers=(container,),
            affinity=_affinity(row.cells["gpu_spec"]),
        ),
    )
    if not row.cells["scheduled_time"].strip():
        return [PodCreated(created_ns, pod), PodDeleted(deleted_ns, pod.key, uid)]
    run_ns = max(0, deleted_ns - row.seconds("scheduled_time"))
    return [PodCreated(created_ns, pod, run_ns)]


def _affinity(gpu_spec: str) -> Affinity | None:
    """The models of GPU that will do, such as ``V100M16|V100M32``; any where nothing is said."""
    models = tuple(model.strip() for model in gpu_spec.split("|") if model.strip())
    if not models:
        return None
    wanted = NodeSelectorRequirement(key=GPU_MODEL_LABEL, operator="In", values=models)
    term = NodeSelectorTerm(match_expressions=(wanted,))
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=(term,))))
