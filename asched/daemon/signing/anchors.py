"""The anchors of a daemon: a file, and the Lease of the leader election."""

from __future__ import annotations

import re
from typing import Final

from anyio import to_thread

from asched.daemon.ha.lease import LeaderElector
from asched.proof.anchors import ANNOTATION, AnchorFile, heads_of
from asched.proof.heads import SignedHead

_NAME_LIMIT: Final = 63
"""Of an annotation, without its prefix and slash."""


class FileAnchor:
    """An :class:`~asched.proof.anchors.Anchor` in a file, which may be on storage that hangs."""

    def __init__(self, file: AnchorFile) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return self._file.name

    async def newest(self) -> SignedHead | None:
        return await to_thread.run_sync(self._file.last, abandon_on_cancel=True)

    async def publish(self, head: SignedHead) -> None:
        await to_thread.run_sync(self._file.append, head, abandon_on_cancel=True)


class LeaseAnchor:
    """An :class:`~asched.proof.anchors.Anchor` in an annotation of the Lease.

    The next renewal of the lease writes it. Until the first :meth:`publish`, the annotation of the
    last leader stays.
    """

    def __init__(self, elector: LeaderElector, annotation: str) -> None:
        self._elector = elector
        self._annotation = annotation

    @property
    def name(self) -> str:
        return f"lease {self._elector.lease}"

    async def newest(self) -> SignedHead | None:
        """That of the lease as it was last read."""
        stored = self._elector.stored_annotations()
        own = {key: text for key, text in stored.items() if key == self._annotation}
        heads = heads_of(own, self.name)
        return heads[0] if heads else None

    async def publish(self, head: SignedHead) -> None:
        self._elector.annotations[self._annotation] = head.line


def annotation_for(instance: str, *, shared: bool) -> str:
    """The annotation for a process's journal. Replicas that do not share one have one each."""
    if shared:
        return ANNOTATION
    host = re.sub(r"[^A-Za-z0-9.-]", "-", instance.rpartition("_")[0] or instance)
    prefix, _, name = ANNOTATION.partition("/")
    return f"{prefix}/{f'{name}.{host}'[:_NAME_LIMIT].rstrip('.-')}"
