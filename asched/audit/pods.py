"""Pods as a user names them, and finding them in a journal, long gone ones too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from asched.framework.runtime.strict import nearest
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore


class AuditError(Exception):
    """A question that the journal cannot answer; its text is one line for a user."""


class PodName(NamedTuple):
    """``NAME`` or ``NAMESPACE/NAME``."""

    namespace: str
    """Empty where the user named none."""
    name: str

    @classmethod
    def parse(cls, text: str) -> PodName:
        """Raises :class:`AuditError` for what names no pod."""
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or (slash and not namespace):
            raise AuditError(f"{text!r} names no pod; expected NAME or NAMESPACE/NAME")
        return cls(namespace, name)

    def matches(self, key: str) -> bool:
        namespace, _, name = key.partition("/")
        return name == self.name and self.namespace in ("", namespace)

    def choose(self, keys: Iterable[str], *, archived_seq: int = 0) -> str:
        """The one pod's key among all that the journal knows; records up to ``archived_seq`` are in
        its archive, and nobody looked there.

        Raises :class:`AuditError` where there is none, naming the nearest, or more than one.
        """
        known = dict.fromkeys(keys)
        found = [key for key in known if self.matches(key)]
        if len(found) == 1:
            return found[0]
        if found:
            raise AuditError(f"more than one pod of that name: {', '.join(sorted(found))}")
        wanted = f"{self.namespace or 'default'}/{self.name}"
        guess = nearest(wanted, known) or self._by_name(known)
        hint = f"; did you mean {guess}?" if guess else ""
        elsewhere = (
            f", but records 1 to {archived_seq} are in the archive (asched journal restore)"
            if archived_seq
            else ""
        )
        raise AuditError(f"the journal knows no pod {self}{elsewhere}{hint}")

    def _by_name(self, keys: Iterable[str]) -> str | None:
        of_name = {key.partition("/")[2]: key for key in keys}
        guess = nearest(self.name, of_name)
        return None if guess is None else of_name[guess]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


async def find_pod(journal: JournalStore, pod: PodName) -> str:
    """The key of the pod that the user means, among those that records outside of the archive speak
    of. Only where that is not plain from the name are all of them listed: there may be millions.

    Raises :class:`AuditError` (see :meth:`PodName.choose`) and
    :class:`~asched.journal.errors.JournalError`.
    """
    if pod.namespace and await _speaks_of(journal, str(pod)):
        return str(pod)
    prefix = object_subject("Pod", "")
    subjects = await journal.subjects(prefix.rstrip("/"))
    archived = await journal.archived()
    return pod.choose(
        (subject.removeprefix(prefix) for subject in subjects), archived_seq=archived.seq
    )


async def _speaks_of(journal: JournalStore, key: str) -> bool:
    """Whether any record outside of the archive is about a pod of that key."""
    archived = await journal.archived()
    async for _ in journal.read(archived.seq, subject=object_subject("Pod", key)):
        return True
    return False
