"""The objects of a manifest, each with its place in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from asched.audit.lookup import AuditError
from asched.config.yaml import Document
from asched.framework.runtime.strict import Path

MAX_OBJECTS: Final = 10_000


class ManifestError(AuditError):
    """A manifest that is not usable. The text is one line that begins with the place."""


class ManifestObject(NamedTuple):
    """One object of a manifest."""

    value: dict[str, Any]
    name: str
    """Of the file."""
    document: Document | None = None
    """With the lines of the file; None if there is none."""
    path: Path = ()
    """Of the object in the document."""

    @property
    def kind(self) -> str:
        return str(self.value.get("kind") or "")

    @property
    def api_version(self) -> str:
        return str(self.value.get("apiVersion") or "")

    @property
    def title(self) -> str:
        """``Deployment default/web``."""
        found = self.value.get("metadata")
        metadata = found if isinstance(found, dict) else {}
        name = metadata.get("name") or metadata.get("generateName") or ""
        return f"{self.kind} {metadata.get('namespace') or 'default'}/{name}"

    def error(self, message: str, path: Path = ()) -> ManifestError:
        """An error at a field of the object."""
        if self.document is None:
            return ManifestError(f"{self.name}: {message}")
        return ManifestError(f"{self.name}:{self.document.line((*self.path, *path))}: {message}")

    def mapping(self, *path: str, required: bool = False) -> dict[str, Any]:
        """The mapping at a path; empty if it is missing. Raises :class:`ManifestError` for another
        value, and for a missing one that is required."""
        found = self._field(path)
        if found is None and not required:
            return {}
        if not isinstance(found, dict):
            what = "is missing" if found is None else "must be a mapping"
            raise self.error(f"{self.title}: {'.'.join(path)} {what}", path)
        return found

    def number(self, *path: str, default: int | None) -> int | None:
        """The number at a path, at least 0. Raises :class:`ManifestError` for another value."""
        found = self._field(path)
        if found is None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            message = f"{'.'.join(path)} must be a whole number of at least 0, not {found!r}"
            raise self.error(f"{self.title}: {message}", path)
        return found

    def _field(self, path: tuple[str, ...]) -> Any:
        found: Any = self.value
        for index, key in enumerate(path):
            if found is None:
                return None
            if not isinstance(found, dict):
                where = ".".join(path[:index])
                raise self.error(f"{self.title}: {where} must be a mapping", path[:index])
            found = found.get(key)
        return found


def objects_of(documents: Iterable[Document], name: str) -> tuple[ManifestObject, ...]:
    """The objects of a file, with the items of lists. Raises :class:`ManifestError`."""
    found: list[ManifestObject] = []
    for document in documents:
        for line, problem in document.located(document.problems):
            raise ManifestError(f"{name}:{line}: {problem}")
        found += _checked(document.value, ManifestObject({}, name, document))
    return _counted(found, name)


def object_of(value: Any, name: str) -> tuple[ManifestObject, ...]:
    """The object, or the items of the list, in decoded JSON. Raises :class:`ManifestError`."""
    return _counted([*_checked(value, ManifestObject({}, name))], name)


def _counted(found: list[ManifestObject], name: str) -> tuple[ManifestObject, ...]:
    if not found:
        raise ManifestError(f"{name}: no object; expected a Pod or a workload that creates pods")
    if len(found) > MAX_OBJECTS:
        raise ManifestError(f"{name}: {len(found)} objects; at most {MAX_OBJECTS} are read")
    return tuple(found)


def _checked(value: Any, place: ManifestObject) -> Iterator[ManifestObject]:
    if not isinstance(value, dict):
        raise place.error("expected an object with apiVersion and kind")
    found = ManifestObject(value, place.name, place.document, place.path)
    for field in ("apiVersion", "kind"):
        if not isinstance(value.get(field), str):
            raise found.error(f"expected a Kubernetes object, but {field} is missing", (field,))
    items = value.get("items")
    if found.kind.endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            path = (*found.path, "items", index)
            yield from _checked(item, ManifestObject({}, found.name, found.document, path))
        return
    metadata = found.mapping("metadata", required=True)
    for field in ("name", "namespace", "generateName"):
        if not isinstance(metadata.get(field) or "", str):
            raise found.error(f"metadata.{field} must be a string", ("metadata", field))
    if not (metadata.get("name") or metadata.get("generateName")):
        raise found.error(f"{found.kind}: metadata has no name", ("metadata",))
    yield found
