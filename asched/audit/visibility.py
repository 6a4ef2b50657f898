"""What a reader may see, and the only way by which an answer reaches one.

The journal holds the pods of all tenants. A query returns a :class:`Sealed` answer, and
:meth:`Sealed.release` removes what the reader may not see: objects with a hidden ``namespace`` or
``key``, and every mention ``namespace/name`` of one. Names of objects are never compared: a text
does not show whether a hidden object exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")

HIDDEN_TEXT: Final = "(in another namespace)"
_REMOVED: Final = object()
"""In place of a value that names a hidden object."""
_TOKEN: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)+")
"""What may be ``namespace/name``, with a kind or an API group before it."""
_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_WHOLE: Final = re.compile(rf"({_LABEL.pattern})/[^/\s]+")


class NotVisibleError(Exception):
    """The reader may not see the answer. Its text is one line for the user."""


class NamespacesUnknownError(Exception):
    """The namespaces of the journal are not known yet. Its text is one line for the user."""


class AnswerScope(Enum):
    """Who may have an answer."""

    PUBLIC = "everybody: it holds nothing of the journal"
    NAMESPACE = "who may list pods in the namespace of its path"
    VISIBLE = "every reader: it holds only namespaces that they may list pods in"
    NODES = "who may list nodes; pods only of namespaces that they may list pods in"
    CLUSTER = "who may list pods in all namespaces"


@dataclass(frozen=True)
class Visible:
    """What one reader may see."""

    everywhere: bool = False
    """The pods of all namespaces."""
    nodes: bool = False
    namespaces: frozenset[str] = frozenset()
    complete: bool = True
    """Whether all namespaces of the journal were checked."""

    def sees(self, namespace: str) -> bool:
        return self.everywhere or namespace in self.namespaces

    def check(self, scope: AnswerScope | None, namespace: str | None) -> None:
        """Raises :class:`NotVisibleError` if the reader may not have answers of that scope, and for
        a route that declares none. ``namespace`` is that of the path."""
        if (self.everywhere and self.nodes) or scope in (AnswerScope.PUBLIC, AnswerScope.VISIBLE):
            return
        if scope is AnswerScope.NAMESPACE and namespace is not None:
            if not self.sees(namespace):
                raise NotVisibleError(f"you may not list pods in namespace {namespace}")
        elif scope is AnswerScope.NODES:
            if not self.nodes:
                raise NotVisibleError("you may not list nodes")
        elif scope is AnswerScope.CLUSTER:
            if not self.everywhere:
                raise NotVisibleError("you may not list pods in all namespaces")
        else:
            raise NotVisibleError("only readers who may list all pods and nodes see this page")

    @property
    def note(self) -> str:
        """What is left out, in one line; empty if nothing is."""
        if self.everywhere:
            return ""
        if not self.namespaces:
            return "You may not list pods in any namespace of this journal."
        shown = sorted(self.namespaces)
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        limit = "" if self.complete else " Not all namespaces were checked."
        return (
            f"Only namespaces that you may list pods in: {', '.join(shown[:_SHOWN])}{more}.{limit}"
        )


_SHOWN: Final = 5
EVERYTHING: Final = Visible(everywhere=True, nodes=True)


class Viewer(Protocol):
    """An authenticated reader."""

    async def visible(self, namespaces: frozenset[str]) -> Visible:
        """What they may see of a journal with these namespaces.

        Raises :class:`~asched.ui.errors.ReviewUnavailableError`.
        """
        ...


class UnrestrictedViewer(Viewer):
    """A reader who may see everything."""

    async def visible(self, namespaces: frozenset[str]) -> Visible:
        return EVERYTHING


class Sealed(Generic[T]):
    """An answer of the journal, which only :meth:`release` gives away."""

    __slots__ = ("_answer", "_namespaces")

    def __init__(self, answer: T, namespaces: frozenset[str] | None) -> None:
        """``namespaces``: every one that the answer can name; None if they are not known yet."""
        self._answer = answer
        self._namespaces = namespaces

    def release(self, visible: Visible) -> T:
        """The answer without what is hidden from the reader.

        Raises :class:`NotVisibleError` if nothing remains, :class:`NamespacesUnknownError` while
        the names of the journal's namespaces are unknown.
        """
        if visible.everywhere:
            return self._answer
        if self._namespaces is None:
            raise NamespacesUnknownError("the namespaces of the journal are being read")
        released: Any = Redaction(visible, self._namespaces).apply(self._answer)
        if released is _REMOVED:
            raise NotVisibleError("you may not list pods in the namespace of the answer")
        answer: T = released
        return answer


class Redaction:
    """Removes hidden objects from values."""

    def __init__(self, visible: Visible, namespaces: frozenset[str]) -> None:
        """``namespaces``: every one that a text can name."""
        self._visible = visible
        self._hidden = namespaces - visible.namespaces

    def apply(self, value: Any) -> Any:
        """The value without hidden objects; the same object if it names none."""
        match value:
            case str():
                return self.text(value)
            case msgspec.Struct():
                return self._struct(value)
            case dict():
                return self._mapping(value)
            case list() | tuple() | set() | frozenset():
                return self._items(value)
        return value

    def text(self, text: str) -> str:
        """The text without mentions of hidden objects."""
        if "/" not in text:
            return text
        whole = _WHOLE.fullmatch(text)
        # A value that is a key of an object, even of a namespace that nothing else names.
        if whole and not self._visible.sees(whole[1]) and not whole[1].isdigit():
            return HIDDEN_TEXT
        if any(text.startswith(f"{namespace}/") for namespace in self._unusual()):
            return HIDDEN_TEXT
        return _TOKEN.sub(self._token, text)

    def _unusual(self) -> tuple[str, ...]:
        """Hidden namespaces that are not DNS labels: no API server has them."""
        return tuple(name for name in self._hidden if not _LABEL.fullmatch(name))

    def _token(self, found: re.Match[str]) -> str:
        parts = found[0].split("/")[:-1]
        return HIDDEN_TEXT if any(part in self._hidden for part in parts) else found[0]

    def _struct(self, value: msgspec.Struct) -> Any:
        if self._is_hidden(getattr(value, "namespace", None), getattr(value, "key", None)):
            return _REMOVED
        changed: dict[str, Any] = {}
        for name in value.__struct_fields__:
            before = getattr(value, name)
            after = self.apply(before)
            if after is _REMOVED:
                if not _is_optional(type(value), name):
                    return _REMOVED
                after = None
            if after is not before:
                changed[name] = after
        return msgspec.structs.replace(value, **changed) if changed else value

    def _mapping(self, value: dict[Any, Any]) -> Any:
        if self._is_hidden(value.get("namespace"), value.get("key")):
            return _REMOVED
        found = {}
        for key, before in value.items():
            after = self.apply(before)
            if after is not _REMOVED and self.apply(key) == key:
                found[key] = after
        same = len(found) == len(value) and all(found[key] is value[key] for key in found)
        return value if same else found

    def _items(self, value: Any) -> Any:
        found = [self.apply(item) for item in value]
        kept = [item for item in found if item is not _REMOVED]
        if len(kept) == len(value) and all(a is b for a, b in zip(kept, value, strict=True)):
            return value
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(kept)
        # A named tuple: without a field it is not that object.
        return type(value)(*kept) if len(kept) == len(value) else _REMOVED

    def _is_hidden(self, namespace: object, key: object) -> bool:
        """Whether an object with these fields is hidden; ``key`` is ``namespace/name``."""
        if isinstance(namespace, str) and namespace and not self._visible.sees(namespace):
            return True
        return isinstance(key, str) and self.text(key) == HIDDEN_TEXT


_OPTIONAL: Final[dict[tuple[type, str], bool]] = {}


def _is_optional(kind: type[msgspec.Struct], name: str) -> bool:
    """Whether a field may be None."""
    known = _OPTIONAL.get((kind, name))
    if known is None:
        fields = msgspec.structs.fields(kind)
        found = next(field.type for field in fields if field.name == name)
        known = _OPTIONAL[kind, name] = type(None) in getattr(found, "__args__", ())
    return known
