"""Work items: small descriptions of work that any process can do, and their results.

The encoded form of an item and the code that executes it determine the result, to the byte. So the
hash of both is the name of the result.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

import msgspec

from asched.audit.replay import ReplayReport, ReplaySegment
from asched.audit.whatif.comparison import WaitPercentiles
from asched.audit.whatif.measures import Figures, Times
from asched.capacity.load import LoadForecast
from asched.capacity.node_mix import NodeMix
from asched.capacity.spot_nodes import SpotNodes
from asched.journal.chain import Head
from asched.planning.provenance import Provenance
from asched.planning.quality import QualityOverTime
from asched.planning.workloads import JournalPeriod, OpenbTables, WorkloadSource
from asched.pricing.prices import Prices


class ItemBase(msgspec.Struct, frozen=True, rename="camel", tag_field="item"):
    """Base of work items."""


class ConfigText(msgspec.Struct, frozen=True, rename="camel"):
    """A configuration file with its content."""

    name: str
    text: str


class RunSettings(msgspec.Struct, frozen=True, rename="camel"):
    """How a run differs from the baseline."""

    config: ConfigText | None = None
    """None for the baseline's."""
    plugins: str = ""
    """Changes of plugins, as for ``asched diff --plugins``."""
    seed: int | None = None
    """Breaks ties between nodes and draws which nodes are copied or dropped. None for the
    recorded one."""
    add_nodes: str = ""
    drop_nodes: str = ""
    """See :func:`~asched.capacity.node_counts.node_changes`."""
    node_mix: NodeMix = NodeMix()
    spot_nodes: SpotNodes = SpotNodes()
    load: LoadForecast = LoadForecast()
    """These three change nothing by default."""


class RunItem(ItemBase, frozen=True, tag="run"):
    """One simulation."""

    workload: WorkloadSource
    settings: RunSettings
    job_class: str
    """See :mod:`asched.planning.job_classes`."""
    prices: Prices | None = None


class SegmentItem(ItemBase, frozen=True, tag="segment"):
    """The replay of a segment of a journal."""

    url: str
    head: Head
    segment: ReplaySegment
    checkpoints: tuple[tuple[int, str], ...]
    """SHA-256 of the checkpoints in the segment and at its beginning. Segments agree on the
    checkpoint between them only if it is the same for both."""


class QualityItem(ItemBase, frozen=True, tag="quality"):
    """One simulation, compared with the bounds at several moments."""

    run: RunItem
    moments: int
    """Evenly spaced in virtual time."""
    limit_s: float
    """Time for the solver, for each bound."""


WorkItem: TypeAlias = RunItem | SegmentItem | QualityItem


class ClassFigures(msgspec.Struct, frozen=True, rename="camel"):
    """The pods of one job class in a run."""

    pods: int
    placed: int
    time_to_bind: Times


class RunFigures(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a :class:`RunItem`."""

    nodes: int
    """Distinct nodes of the run."""
    span_s: float
    """Virtual time of the run."""
    node_hours: float
    """Total time of all nodes."""
    figures: Figures
    waits: WaitPercentiles
    classes: dict[str, ClassFigures]
    sha256: str
    """Of the complete run: every pod with all its placements, and every node."""
    notes: tuple[str, ...] = ()


ItemResult: TypeAlias = RunFigures | ReplayReport | QualityOverTime


class WorkRequest(msgspec.Struct, frozen=True):
    """What a worker receives."""

    item: WorkItem
    provenance: Provenance
    """The code that must execute it."""


class WorkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker returns: a result, or an error in one line."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    foreign: bool = False
    """Whether the worker differs, so that all of its results would be errors."""
    lost: bool = False
    """Whether workers ended during the item, so that another execution may succeed."""
    cpu_s: float = 0.0
    """CPU time of the worker's thread, with reading the workload."""
    run_cpu_s: float = 0.0
    """Without reading the workload."""
    worker: str = ""
    """Host and process id."""


def item_key(item: WorkItem, provenance: Provenance) -> str:
    """The SHA-256 that names the result of the item with this code."""
    return sha256(msgspec.json.encode(WorkRequest(_without_place(item), provenance))).hexdigest()


def _without_place(item: WorkItem) -> WorkItem:
    """The item without where its data are: its hashes name the content."""
    replace = msgspec.structs.replace
    match item:
        case SegmentItem():
            return replace(item, url="")
        case QualityItem(run=run):
            return replace(item, run=_without_place(run))
        case RunItem(workload=JournalPeriod() as period):
            return replace(item, workload=replace(period, url=""))
        case RunItem(workload=OpenbTables() as tables):
            return replace(item, workload=replace(tables, nodes="", pods=""))
    return item
