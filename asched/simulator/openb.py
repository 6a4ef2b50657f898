"""Import of the openb trace: nodes and pods of a production GPU cluster, from two CSV tables.

The tables are those of Alibaba's cluster-trace-gpu-v2023 (``openb_node_list_*.csv`` and
``openb_pod_list_*.csv``). A GPU is 1,000 units of :data:`GPU_MILLI`; pods that share a GPU request
fewer. Units are counted per node. Placement on individual GPUs needs a plugin
(``plugins/asched-gpu``).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from asched.model.meta import ObjectMeta
from asched.model.node import HOSTNAME_LABEL, Node, NodeCondition, NodeStatus
from asched.model.pod import Affinity, Container, NodeAffinity, Pod, PodSpec, ResourceRequirements
from asched.model.quantity import NS_PER_S
from asched.model.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from asched.simulator.pods import api_time
from asched.simulator.trace import ObjectSet, PodCreated, PodDeleted, TraceEvent, WorkloadTrace

GPU_MILLI: Final = "alibabacloud.com/gpu-milli"
"""The GPU resource, in thousandths of a GPU."""
GPU_COUNT: Final = "alibabacloud.com/gpu-count"
"""Annotation of pods that use shares of several GPUs, for plugins."""
GPU_MODEL_LABEL: Final = "alibabacloud.com/gpu-card-model"
QOS_LABEL: Final = "alibabacloud.com/qos"
MILLI: Final = 1000
PODS_PER_NODE: Final = "256"
"""Not in the trace; more than any of its nodes ran."""

_LONGEST_S: Final = 100 * 365 * 86_400
BEGIN_NS: Final = int(datetime(2023, 1, 1, tzinfo=UTC).timestamp()) * NS_PER_S
"""Start of the trace, which counts seconds from an unknown time."""

_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_NODE_DEFAULTS: Final = {"gpu": "nodes have no GPUs", "model": "GPUs have no model"}
_POD_DEFAULTS: Final = {
    "gpu_spec": "pods may use any GPU model",
    "qos": "pods have no QoS label",
    "creation_time": "all pods arrive at the start",
    "deletion_time": "pods run forever",
    "scheduled_time": "pods run from their creation to their deletion time",
}
"""What holds without a column that some published tables do not have."""


class TraceError(ValueError):
    """An invalid table; the message names the line and the expected value."""


class Table(NamedTuple):
    """The lines of a CSV file and its name for messages."""

    name: str
    lines: Sequence[str]


def assumptions(nodes: Table, pods: Table) -> tuple[str, ...]:
    """For each optional column that a table lacks: what is assumed instead."""
    return tuple(
        f"{table.name} has no column {column}: {assumed}"
        for table, defaults in ((nodes, _NODE_DEFAULTS), (pods, _POD_DEFAULTS))
        for column, assumed in defaults.items()
        if column not in (csv.DictReader(table.lines).fieldnames or ())
    )


def read_openb(
    nodes: Table, pods: Table, scheduler_name: str, since_ns: int = BEGIN_NS
) -> WorkloadTrace:
    """The workload trace with pods for ``scheduler_name``.

    All nodes exist from the start. A pod that was scheduled in the trace has the same running time
    here; one that was not is deleted at the same time. With ``since_ns`` the workload begins then:
    pods that ended before are omitted, and those that existed arrive at once with the remaining
    time. :func:`assumptions` has what replaces columns that are absent. Raises :class:`TraceError`.
    """
    begin_ns = max(since_ns, BEGIN_NS)
    events: list[TraceEvent] = [
        ObjectSet(begin_ns, _node(row)) for row in _rows(nodes, _NODE_COLUMNS, "sn")
    ]
    for row in _rows(pods, _POD_COLUMNS, "name"):
        events += _pod(row, scheduler_name, begin_ns)
    if begin_ns > BEGIN_NS and not any(isinstance(event, PodCreated) for event in events):
        begin = f"{api_time(begin_ns):%Y-%m-%dT%H:%M:%SZ}"
        raise TraceError(f"{pods.name}: no pod exists at {begin} or later")
    events.sort(key=lambda event: event.at_ns)
    return WorkloadTrace(tuple(events), begin_ns)


class _Row(NamedTuple):
    """One line of a table, with its location for messages."""

    place: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Empty for a column that the table does not have. ``nan`` is how pandas writes it."""
        found = self.cells.get(column, "").strip()
        return "" if found == "nan" else found

    def number(self, column: str, *, default: int | None = None) -> int:
        """A non-negative integer."""
        text = self.text(column)
        if not text and default is not None:
            return default
        # Tables saved by a spreadsheet contain 12.0 for 12.
        whole = text.removesuffix(".0")
        if not (whole.isascii() and whole.isdecimal()):
            wanted = "expected a whole number, 0 or more"
            raise TraceError(f"{self.place}: {column}: {wanted}, got {text!r}")
        return int(whole)

    def seconds(self, column: str) -> int | None:
        """A time of the trace in nanoseconds; None without the column."""
        if column not in self.cells:
            return None
        seconds = self.number(column)
        if seconds > _LONGEST_S:
            wanted = f"expected at most {_LONGEST_S} seconds, 100 years"
            raise TraceError(f"{self.place}: {column}: {wanted}, got {seconds}")
        return BEGIN_NS + seconds * NS_PER_S


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
    name, model = row.cells["sn"], row.text("model")
    allocatable: dict[str, str | int | float] = {
        "cpu": f"{row.number('cpu_milli')}m",
        "memory": f"{row.number('memory_mib')}Mi",
        "pods": PODS_PER_NODE,
    }
    labels = {HOSTNAME_LABEL: name}
    gpus = row.number("gpu", default=0)
    if gpus:
        allocatable[GPU_MILLI] = str(gpus * MILLI)
        labels |= {GPU_MODEL_LABEL: model} if model else {}
    return Node(
        metadata=ObjectMeta(
            name=name, uid=f"openb-{name}", labels=labels, creation_timestamp=api_time(BEGIN_NS)
        ),
        status=NodeStatus(
            capacity=allocatable,
            allocatable=allocatable,
            conditions=(NodeCondition(type="Ready", status="True"),),
        ),
    )


def _pod(row: _Row, scheduler_name: str, begin_ns: int) -> list[TraceEvent]:
    name, deleted_ns = row.cells["name"], row.seconds("deletion_time")
    created_ns = row.seconds("creation_time") or BEGIN_NS
    if deleted_ns is not None and deleted_ns < created_ns:
        raise TraceError(f"{row.place}: deletion_time: expected creation_time or later")
    if deleted_ns is not None and deleted_ns < begin_ns:
        return []
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
            labels={QOS_LABEL: qos} if (qos := row.text("qos")) else {},
            creation_timestamp=api_time(created_ns),
            declared_annotations=shares,
        ),
        spec=PodSpec(
            scheduler_name=scheduler_name,
            containers=(container,),
            affinity=_affinity(row.text("gpu_spec")),
        ),
    )
    arrives_ns = max(created_ns, begin_ns)
    if deleted_ns is None:
        return [PodCreated(arrives_ns, pod)]
    if "scheduled_time" in row.cells and not row.text("scheduled_time"):
        return [PodCreated(arrives_ns, pod), PodDeleted(deleted_ns, pod.key, uid)]
    began_ns = max(row.seconds("scheduled_time") or created_ns, begin_ns)
    return [PodCreated(arrives_ns, pod, max(0, deleted_ns - began_ns))]


def _affinity(gpu_spec: str) -> Affinity | None:
    """Affinity to the allowed GPU models, such as ``V100M16|V100M32``; empty allows any."""
    models = tuple(model.strip() for model in gpu_spec.split("|") if model.strip())
    if not models:
        return None
    wanted = NodeSelectorRequirement(key=GPU_MODEL_LABEL, operator="In", values=models)
    term = NodeSelectorTerm(match_expressions=(wanted,))
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=(term,))))
