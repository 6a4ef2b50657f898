"""The versions of the pods that the state was read from, so that a restart decodes what changed.

A pod's version is its ``metadata.resourceVersion``. It is noted at the
:class:`~asched.framework.pod_info.PodInfo` that the object was compared with or folded to. A record
that changes the pod creates another PodInfo, which has no version. So a version means: reading the
object of that version gives this PodInfo, and observing it again leaves no record.

No part of the state: no record and no decision depends on versions. Checkpoints store them behind
the state, so the same signature covers both.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import asched
from asched.framework.feature_gates import FeatureGates
from asched.framework.pod_info import PodInfo
from asched.model.pod import Pod
from asched.model.resources import AnyObject

_PACKAGE: Final = Path(asched.__file__).parent
_READERS: Final = (
    "model/*.py",
    "framework/feature_gates.py",
    "kube/decoding.py",
    "state/observe.py",
)
"""The code that determines what is read of a pod. A changed checkout has the version of its
release."""


def reading_of(annotations: Iterable[str], gates: FeatureGates) -> str:
    """Names everything that determines what is read of a pod: equal names, equal readings.

    ``annotations``: those that plugins read.
    """
    digest = sha256(repr((asched.__version__, sorted(annotations), gates)).encode())
    for pattern in _READERS:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()


class HasPodInfo(Protocol):
    """An entry of the state."""

    info: PodInfo


class SeenVersions:
    """The versions of the pods of one state."""

    def __init__(self, pods: Mapping[str, HasPodInfo]) -> None:
        self.reading = ""
        """How the noted versions were read, see :func:`reading_of`; empty if unknown."""
        self._pods = pods
        self._newest = 0

    def begin(self, reading: str) -> None:
        """Pods are read in this way from now on. Forgets the versions of another reading."""
        if reading != self.reading:
            for entry in self._pods.values():
                entry.info.seen_version = 0
            self.reading = reading

    def end(self) -> None:
        """What is read of a pod changes while the daemon runs: the next start decodes all pods."""
        self.reading = ""

    def note(self, observed: AnyObject, version: int) -> None:
        """The object of this version was observed, and its record folded. 0 is ignored."""
        if version and isinstance(observed, Pod) and not observed.terminal:
            entry = self._pods.get(observed.key)
            if entry is not None and entry.info.uid == observed.uid:
                entry.info.seen_version = version

    def is_unchanged(self, key: str, uid: str, version: int, list_version: int) -> bool:
        """Whether observing a pod of this version, of a list of that version, leaves no record.

        An older list than the newest version is one of a cluster that was restored from a backup:
        it may give the same numbers to other versions.
        """
        if not version or not self.reading or list_version < self._newest:
            return False
        entry = self._pods.get(key)
        if entry is None:
            return False
        info = entry.info
        return info.seen_version == version and info.uid == uid

    def restore(self, section: bytes, infos: Sequence[PodInfo]) -> None:
        """Note what :class:`VersionsSection` stored about these pods. Raises ValueError."""
        if not section:
            return
        reading, _, stored = zlib.decompress(section).partition(b"\n")
        versions = array("q", stored)
        if len(versions) != len(infos):
            raise ValueError(f"{len(versions)} versions of {len(infos)} pods")
        for info, version in zip(infos, versions, strict=True):
            info.seen_version = version
        self.reading = reading.decode("ascii")
        self._newest = max(versions, default=0)


class VersionsSection:
    """The stored form of the versions, in the order of the pods in a checkpoint.

    Versions may be newer than the checkpoint: those that followed changed nothing of the pods that
    it contains.
    """

    def __init__(self, seen: SeenVersions) -> None:
        self._seen = seen
        self._reading = seen.reading
        self._parts: list[bytes] = []

    def add(self, infos: Iterable[PodInfo]) -> None:
        """The next pods."""
        self._parts.append(array("q", [info.seen_version for info in infos]).tobytes())

    def content(self) -> list[bytes]:
        """Empty if the reading is unknown, or ended meanwhile."""
        if not self._reading or self._seen.reading != self._reading:
            return []
        return [self._reading.encode("ascii"), b"\n", *self._parts]
