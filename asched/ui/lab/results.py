"""Stored results of the lab: a file each, limited in number and bytes."""

from __future__ import annotations

import os
import re
import threading
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from asched.audit.whatif.comparison import DiffReport
from asched.pricing.prices import Prices
from asched.ui.lab.requests import LabRequest, LabSource

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_RESULTS: Final = 200
MAX_BYTES: Final = 256 << 20
MAX_LISTED_PODS: Final = 2_000
"""Pods in each list of a stored result."""
_ID: Final = re.compile(r"[0-9a-f]{24}")
_SUFFIX: Final = ".json"


class OmittedPods(msgspec.Struct, frozen=True, rename="camel"):
    """Numbers of differing pods beyond :data:`MAX_LISTED_PODS`."""

    placed_elsewhere: int = 0
    placed_in_baseline_only: int = 0
    placed_in_candidate_only: int = 0


class LabResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a run. ``report`` is that of ``asched diff -o json``."""

    id: str
    finished_at: datetime
    took_s: float
    request: LabRequest
    report: DiffReport
    omitted: OmittedPods = OmittedPods()


class ListedResult(msgspec.Struct, frozen=True, rename="camel"):
    """A stored result in a list."""

    id: str
    finished_at: datetime
    source: LabSource
    changes: str
    since: str
    until: str
    bytes: int
    prices: str
    """``current``: those of new results, or as new results without any; ``other``; ``none``."""


class _Summary(msgspec.Struct, rename="camel"):
    """The part of a result that a list needs; the rest is not decoded."""

    id: str
    finished_at: datetime
    request: LabRequest
    bytes: int = 0

    def listed(self, current: Prices | None) -> ListedResult:
        """``current``: the prices of new results."""
        request = self.request
        prices = "none" if request.prices is None else "other"
        return ListedResult(
            id=self.id,
            finished_at=self.finished_at,
            source=request.source,
            changes=request.changes,
            since=request.since,
            until=request.until,
            bytes=self.bytes,
            prices="current" if request.prices == current else prices,
        )


def shortened(report: DiffReport) -> tuple[DiffReport, OmittedPods]:
    """The report with limited lists of pods, and how many are left out."""
    lists = {name: getattr(report, name) for name in OmittedPods.__struct_fields__}
    omitted = {name: max(0, len(pods) - MAX_LISTED_PODS) for name, pods in lists.items()}
    kept = {name: pods[:MAX_LISTED_PODS] for name, pods in lists.items()}
    return msgspec.structs.replace(report, **kept), OmittedPods(**omitted)


def is_result_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


class ResultStore:
    """The results in a folder. Its methods block, and may be called from any thread."""

    def __init__(
        self, folder: Path, max_results: int = MAX_RESULTS, max_bytes: int = MAX_BYTES
    ) -> None:
        """Raises OSError if the folder is not writable."""
        self._folder = folder
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._listed: dict[tuple[str, int], _Summary | None] = {}
        """By name and time of change of the file; None for other files."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob("*.partial"):
            left.unlink(missing_ok=True)
        probe = folder / f"{os.getpid()}.partial"
        probe.touch(mode=0o600)
        probe.unlink()

    def partial_path(self, result_id: str) -> Path:
        """Where a worker writes the result."""
        return self._folder / f"{result_id}.{os.getpid()}.partial"

    def has(self, result_id: str) -> bool:
        return is_result_id(result_id) and self._path(result_id).is_file()

    def keep(self, result_id: str) -> None:
        """Keep what a worker has written, and remove the oldest results beyond the limits.

        Raises OSError.
        """
        self.partial_path(result_id).rename(self._path(result_id))
        self._remove_oldest(result_id)

    def discard(self, result_id: str) -> None:
        """Remove what a worker has written."""
        self.partial_path(result_id).unlink(missing_ok=True)

    def load(self, result_id: str) -> LabResult | None:
        """The result; None if there is none, or if its file is of another version."""
        if not is_result_id(result_id):
            return None
        try:
            content = self._path(result_id).read_bytes()
        except OSError:
            return None
        try:
            return msgspec.json.decode(content, type=LabResult)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            log.warning("result is unreadable", file=str(self._path(result_id)))
            return None

    def listed(self, current: Prices | None) -> list[ListedResult]:
        """All results, the newest first. ``current``: the prices of new results."""
        with self._lock:
            known, self._listed = self._listed, {}
            for path, stat in self._files():
                key = (path.name, stat.st_mtime_ns)
                self._listed[key] = known[key] if key in known else _summary(path, stat.st_size)
            found = [one.listed(current) for one in self._listed.values() if one is not None]
        return sorted(found, key=lambda one: one.finished_at, reverse=True)

    def _path(self, result_id: str) -> Path:
        return self._folder / f"{result_id}{_SUFFIX}"

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if is_result_id(path.stem):
                try:
                    found.append((path, path.stat()))
                except OSError:
                    continue  # removed meanwhile
        return found

    def _remove_oldest(self, newest: str) -> None:
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        number, size = len(files), sum(stat.st_size for _, stat in files)
        for path, stat in files:
            if number <= self._max_results and size <= self._max_bytes:
                return
            if path.stem == newest:
                continue
            path.unlink(missing_ok=True)
            number, size = number - 1, size - stat.st_size


def _summary(path: Path, size: int) -> _Summary | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Summary)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    found.id, found.bytes = path.stem, size
    return found
