"""Who may have which answers: namespaces of a journal, and a reader with a list of them."""

from __future__ import annotations

from typing import Final

import msgspec

from asched.audit.lookup import AuditError, fold_before
from asched.audit.visibility import AnswerScope, NotVisibleError, Redaction, Viewer, Visible
from asched.framework.runtime.profile import PluginLoader
from asched.journal.codec import object_subject
from asched.journal.store import JournalStore
from asched.mcp.tools import NeededRight
from asched.model.custom import CustomObject
from asched.model.resources import GroupResource, Resource
from asched.state.cluster import ClusterState

_KINDS: Final = (
    *(resource.type.__name__ for resource in (*Resource, *GroupResource)),
    CustomObject.__name__,
)


class NamespaceViewer(Viewer):
    """A reader who may list pods in these namespaces, and no nodes."""

    def __init__(self, namespaces: frozenset[str]) -> None:
        self._namespaces = namespaces

    async def visible(self, namespaces: frozenset[str]) -> Visible:
        return Visible(namespaces=self._namespaces)


class JournalNamespaces:
    """The namespaces of all objects in a journal, as far as it was read."""

    def __init__(self) -> None:
        self._seq = 0
        self.names: frozenset[str] = frozenset()

    async def update(self, journal: JournalStore, load: PluginLoader) -> frozenset[str]:
        """Those up to the present head. Raises JournalError, ProfileError."""
        head = await journal.head()
        if head.seq == self._seq:
            return self.names
        names = set(self.names)
        archived = await journal.archived()
        if archived.seq and not self._seq:
            names |= _namespaces_of((await fold_before(journal, load, archived.seq + 1)).state)
        for kind in _KINDS:
            for subject in await journal.subjects(object_subject(kind, "").rstrip("/")):
                names.update(subject.split("/")[1:-1])
        self._seq, self.names = head.seq, self.names | names
        return self.names


def _namespaces_of(state: ClusterState) -> set[str]:
    """Those of the objects before the first record that is not archived."""
    found = {entry.info.namespace for entry in state.pods.values()}
    for objects in state.object_store.by_kind.values():
        found.update(item.metadata.namespace for item in objects.values())
    return found - {""}


def check_right(visible: Visible, needed: NeededRight) -> None:
    """Raises NotVisibleError if the reader may not have the answer, AuditError for a name without
    the namespace that decides."""
    if needed.scope is AnswerScope.NAMESPACE and not needed.namespace and not visible.everywhere:
        seen = ", ".join(sorted(visible.namespaces)) or "none"
        raise AuditError(f"give NAMESPACE/NAME; namespaces that you may see: {seen}")
    visible.check(needed.scope, needed.namespace)


def redacted(error: Exception, visible: Visible, namespaces: frozenset[str]) -> str:
    """The line of an error without the names that its reader may not see."""
    if visible.everywhere or isinstance(error, NotVisibleError | msgspec.ValidationError):
        return str(error)
    return Redaction(visible, namespaces).text(str(error))
