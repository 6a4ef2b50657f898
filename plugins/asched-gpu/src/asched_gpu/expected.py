"""Computes the expected workload from a table of past pods.

    python -m asched_gpu.expected PODS.csv

prints them as the ``workload`` of GpuShare's ``args``.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from asched_gpu.workload import TaskClass

SHARE_OF_TASKS = 0.95
"""The workload contains the most frequent kinds up to this share of tasks, as in the paper."""


class _Kind(NamedTuple):
    cpu_milli: int
    gpu_milli: int
    gpus: int
    models: str


def expected_workload(
    rows: Iterable[Mapping[str, str]], share: float = SHARE_OF_TASKS
) -> tuple[TaskClass, ...]:
    """The task classes of a table in the format of ``openb_pod_list_*.csv``, most frequent first.

    Raises KeyError or ValueError for another format.
    """
    kinds = Counter(map(_kind_of, rows))
    ranked = sorted(kinds.items(), key=lambda kind: (kind[1], kind[0]), reverse=True)
    classes: list[TaskClass] = []
    counted, enough = 0, share * kinds.total()
    for kind, count in ranked:
        if counted >= enough:
            break
        counted += count
        models = tuple(model for model in kind.models.split("|") if model)
        classes.append(TaskClass(count, kind.cpu_milli, kind.gpus, kind.gpu_milli, models))
    return tuple(classes)


def _kind_of(row: Mapping[str, str]) -> _Kind:
    gpus = _whole(row["num_gpu"])
    milli = min(_whole(row["gpu_milli"]), 1000) if gpus else 0
    return _Kind(_whole(row["cpu_milli"]), milli, gpus, row["gpu_spec"].strip() if gpus else "")


def _whole(text: str) -> int:
    """Parses numbers of tables exported from a spreadsheet: 12.0 for 12, empty for 0."""
    return int(text.strip().removesuffix(".0") or 0)


def main(path: str) -> None:
    rows = csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())
    print(msgspec.json.format(msgspec.json.encode(expected_workload(rows))).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
