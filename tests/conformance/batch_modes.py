"""Compares the two session modes on the same clusters in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from asched.batch.registry import SessionRegistry
from asched.batch.session import SessionRun
from asched.config.batch import ConfError, parse_conf
from asched.framework.session_objects import TaskStatus
from asched.framework.sessions import Compatibility, SessionOutcome
from tests.conformance.batch_answers import BatchLaboratory
from tests.conformance.batch_documents import BatchDocument, is_batch_document

HEADINGS = (
    "topic",
    "clusters",
    "same binds and evictions",
    "pods bound",
    "pods evicted",
    "pods waiting for evictions",
    "pods of gangs that cannot start",
)


class Figures(NamedTuple):
    """Totals over sessions."""

    bound: int = 0
    evicted: int = 0
    waiting: int = 0
    """Pipelined."""
    held_up: int = 0
    """Allocated but not bound, in jobs that cannot start even after pending releases: wasted
    room."""

    def plus(self, other: Figures) -> Figures:
        return Figures(*map(sum, zip(self, other, strict=True)))


class Comparison(NamedTuple):
    """Both modes on the clusters of one topic."""

    topic: str
    clusters: int
    same: int
    kube_batch: Figures
    ours: Figures

    def cells(self) -> tuple[str, ...]:
        pairs = zip(self.kube_batch, self.ours, strict=True)
        return (self.topic, str(self.clusters), str(self.same), *(f"{k} → {o}" for k, o in pairs))


def compare_modes(topics: Mapping[str, Sequence[Path]]) -> Iterator[Comparison]:
    """A comparison for each topic with recorded sessions, and the total, without documents with an
    invalid configuration."""
    total = Comparison("all", 0, 0, Figures(), Figures())
    for topic, paths in topics.items():
        found = _compare(topic, [path for path in paths if is_batch_document(path)])
        if found.clusters:
            yield found
            total = Comparison(
                total.topic,
                total.clusters + found.clusters,
                total.same + found.same,
                total.kube_batch.plus(found.kube_batch),
                total.ours.plus(found.ours),
            )
    yield total


def _compare(topic: str, paths: Sequence[Path]) -> Comparison:
    registry = SessionRegistry.discover()
    clusters = same = 0
    theirs, ours = Figures(), Figures()
    for path in paths:
        document = BatchDocument(path)
        try:
            conf = parse_conf(document.conf, registry.action_names)
        except ConfError:
            continue
        if not set(conf.plugin_names) <= set(registry.plugin_names):
            continue
        clusters += 1
        runs = []
        for mode in (Compatibility.KUBE_BATCH, Compatibility.NONE):
            laboratory = BatchLaboratory(document, registry, mode)
            spec = laboratory.spec(conf)
            runs.append(laboratory.hold(document.world(spec, seed=1), conf, spec, 0))
        (their_run, their_outcome, _), (our_run, our_outcome, _) = runs
        theirs = theirs.plus(_figures(their_run, their_outcome))
        ours = ours.plus(_figures(our_run, our_outcome))
        same += _sent(their_outcome) == _sent(our_outcome)
    return Comparison(topic, clusters, same, theirs, ours)


def _sent(outcome: SessionOutcome) -> tuple[frozenset[str], frozenset[str]]:
    """Bound and evicted pods, without nodes, which depend on tie-breaks."""
    return (
        frozenset(bind.pod for bind in outcome.binds),
        frozenset(eviction.pod for eviction in outcome.evictions),
    )


def _figures(run: SessionRun, outcome: SessionOutcome) -> Figures:
    jobs = run.session.jobs.values()
    return Figures(
        bound=len(outcome.binds),
        evicted=len(outcome.evictions),
        waiting=len(outcome.pipelined),
        held_up=sum(job.count(TaskStatus.ALLOCATED) for job in jobs if not job.pipelined),
    )


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """In Markdown."""
    rows = [HEADINGS, *(comparison.cells() for comparison in comparisons)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(HEADINGS) + "|")
    return lines
