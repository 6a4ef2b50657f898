"""Compares single plugins with the recorded answers of kube-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from tests.conformance.documents import Case, Document, documents

TOPICS = (
    "resources",
    "taints-tolerations",
    "node-affinity",
    "nodename-ports",
    "image-locality",
    "interpod-affinity",
    "topology-spread",
    "volumes",
    "scheduling-gates",
    "declared-features",
    "preemption",
    "fit-strategies",
    "mixed",
    "edge",
)
"""All recorded documents."""


class Comparison(Protocol):
    """Compares plugins with the cases of one document."""

    def differences(self, case: Case) -> Iterable[str]:
        """Readable differences; none if the plugins answer as recorded."""


def assert_as_recorded(
    shared_dir: Path, topic: str, comparison_of: Callable[[Document], Comparison]
) -> None:
    """Every case of every document of the topic."""
    compared = 0
    wrong = []
    for path in documents(shared_dir / "golden" / "kube", [topic]):
        document = Document(path)
        comparison = comparison_of(document)
        for number, case in enumerate(document.cases):
            compared += 1
            wrong += [f"{path.stem} case {number}: {d}" for d in comparison.differences(case)]
    assert compared
    assert not wrong, f"{len(wrong)} differences in {compared} cases\n" + "\n".join(wrong[:20])
