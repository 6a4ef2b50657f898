"""The versions of the objects that the state was read from, so that a restart decodes what changed.

A version is ``metadata.resourceVersion``. It is noted for what the state has after the object was
observed: the :class:`~asched.framework.pod_info.PodInfo` of a pod, the struct of another object.
Both are immutable, and a record that changes the object creates another one, without a version. So
a version means: reading the object of that version gives this value, and observing it again leaves
no record.

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
from asched.model.meta import Object
from asched.model.pod import Pod
from asched.model.resources import AnyObject
from asched.state.objects import ObjectStore

_PACKAGE: Final = Path(asched.__file__).parent
_READERS: Final = (
    "model/*.py",
    "framework/feature_gates.py",
    "kube/decoding.py",
    "state/observe.py",
)
"""The code that determines what is read of an object. A changed checkout has the version of its
release."""


def reading_of(annotations: Iterable[str], gates: FeatureGates) -> str:
    """Names everything that determines what is read of an object: equal names, equal readings.

    ``annotations``: those of pods that plugins read.
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
    """The versions of the objects of one state."""

    def __init__(self, pods: Mapping[str, HasPodInfo], store: ObjectStore) -> None:
        self.reading = ""
        """How the noted versions were read, see :func:`reading_of`; empty if unknown."""
        self._pods = pods
        self._store = store
        self._newest = 0

    def begin(self, reading: str) -> None:
        """Objects are read in this way from now on. Forgets the versions of another reading."""
        if reading != self.reading:
            for entry in self._pods.values():
                entry.info.seen_version = 0
            self._store.seen.clear()
            self.reading = reading

    def end(self) -> None:
        """What is read changes while the daemon runs: the next start decodes all objects."""
        self.reading = ""

    def note(self, observed: AnyObject, version: int) -> None:
        """The object of this version was observed, and its record folded. 0 is ignored."""
        if not version:
            return
        if isinstance(observed, Pod):
            entry = self._pods.get(observed.key)
            if entry is not None and entry.info.uid == observed.uid and not observed.terminal:
                entry.info.seen_version = version
            return
        stored = self._store.of_kind(type(observed)).get(observed.key)
        if stored is not None and stored.uid == observed.uid:
            self._note_stored(stored, version)

    def _note_stored(self, stored: Object, version: int) -> None:
        self._store.seen.setdefault(type(stored), {})[stored.key] = stored, version

    @property
    def restored(self) -> bool:
        """Whether a checkpoint had versions."""
        return self._newest > 0

    def is_unchanged(
        self, kind: type[Object], key: str, uid: str, version: int, list_version: int
    ) -> bool:
        """Whether observing an object of this version, in a list of that version, leaves no record.

        An older list than the newest version is one of a cluster that was restored from a backup:
        it may give the same numbers to other versions.
        """
        if not version or not self.reading or list_version < self._newest:
            return False
        if kind is Pod:
            entry = self._pods.get(key)
            return (
                entry is not None and entry.info.seen_version == version and entry.info.uid == uid
            )
        stored = self._store.of_kind(kind).get(key)
        return stored is not None and stored.uid == uid and self.version_of(stored) == version

    def version_of(self, stored: Object) -> int:
        """The version of an object of the store; 0 if it is unknown, or of another form of it."""
        noted = self._store.seen.get(type(stored), {}).get(stored.key)
        return noted[1] if noted is not None and noted[0] is stored else 0

    def restore(self, section: bytes, infos: Sequence[PodInfo]) -> None:
        """Note what :class:`VersionsSection` stored about these pods, and about the objects of the
        store. Raises ValueError."""
        if not section:
            return
        reading, _, stored = zlib.decompress(section).partition(b"\n")
        versions, objects = array("q", stored), self._store.snapshot()
        if len(versions) != len(infos) + len(objects):
            raise ValueError(f"{len(versions)} versions of {len(infos) + len(objects)} objects")
        for info, version in zip(infos, versions, strict=False):
            info.seen_version = version
        for item, version in zip(objects, versions[len(infos) :], strict=True):
            if version:
                self._note_stored(item, version)
        self.reading = reading.decode("ascii")
        self._newest = max(versions, default=0)


class VersionsSection:
    """The stored form of the versions, in the order of a checkpoint: pods, then other objects.

    Versions may be newer than the checkpoint: those that followed changed nothing of what it
    contains.
    """

    def __init__(self, seen: SeenVersions) -> None:
        self._seen = seen
        self._reading = seen.reading
        self._parts: list[bytes] = []

    def add(self, infos: Iterable[PodInfo]) -> None:
        """The next pods."""
        self._parts.append(array("q", [info.seen_version for info in infos]).tobytes())

    def add_objects(self, objects: Iterable[Object]) -> None:
        """The next other objects."""
        version_of = self._seen.version_of
        self._parts.append(array("q", [version_of(item) for item in objects]).tobytes())

    def content(self) -> list[bytes]:
        """Empty if the reading is unknown, or ended meanwhile."""
        if not self._reading or self._seen.reading != self._reading:
            return []
        return [self._reading.encode("ascii"), b"\n", *self._parts]
