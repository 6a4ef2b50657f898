"""Reads kubeconfig files: merged, with absolute paths, limited in size, without quoting secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from asched.config.yaml import YamlError, parse_documents, read_limited
from asched.kube.errors import KubeConfigError

_CLUSTER_FILES = ("certificate-authority",)
_USER_FILES = ("client-certificate", "client-key", "tokenFile")


class SelectedContext(NamedTuple):
    """What a context refers to."""

    name: str
    cluster_name: str
    cluster: Any
    """The cluster's section; None if it is missing."""
    user: dict[str, Any]
    folder: Path
    """The folder of the file with the user."""

    def as_config(self, user: dict[str, Any]) -> dict[str, Any]:
        """A kubeconfig with this context only, and another ``user``."""
        clusters = []
        if self.cluster is not None:
            clusters.append({"name": self.cluster_name, "cluster": self.cluster})
        context = {"cluster": self.cluster_name, "user": "user"}
        return {
            "current-context": self.name,
            "contexts": [{"name": self.name, "context": context}],
            "clusters": clusters,
            "users": [{"name": "user", "user": user}],
        }


class _File(NamedTuple):
    folder: Path
    content: dict[str, Any]


class _Entry(NamedTuple):
    folder: Path
    content: dict[str, Any]


def read_context(files: list[Path], context: str | None) -> SelectedContext:
    """The context named ``context``, or the current-context of the files. Raises
    KubeConfigError."""
    where = os.pathsep.join(map(str, files))
    parsed = [_File(file.absolute().parent, _parsed(file)) for file in files]
    contexts, users = _by_name(parsed, "contexts"), _by_name(parsed, "users")
    current = [f.content["current-context"] for f in parsed if "current-context" in f.content]
    name = context or (current[-1] if current else None)
    if not name:
        raise KubeConfigError(f"{where}: no current-context; choose one with --context")
    name = str(name)
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise KubeConfigError(f"{where}: no context {name!r}; available: {known}")
    found = contexts[name].content.get("context")
    section = found if isinstance(found, dict) else {}
    user_name = section.get("user")
    user_entry = users.get(str(user_name)) if user_name is not None else None
    if user_entry is None:
        raise KubeConfigError(f"{where}: context {name!r} has no known user: {user_name!r}")
    user = user_entry.content.get("user") or {}
    if not isinstance(user, dict):
        raise KubeConfigError(f"{where}: user {user_name!r} is not a mapping")
    cluster_name = str(section.get("cluster"))
    cluster_entry = _by_name(parsed, "clusters").get(cluster_name)
    cluster = None
    if cluster_entry is not None:
        if "cluster" not in cluster_entry.content:
            raise KubeConfigError(f"{where}: Expected key cluster in cluster {cluster_name!r}")
        cluster = _with_absolute(cluster_entry, "cluster", _CLUSTER_FILES)
    return SelectedContext(
        name=name,
        cluster_name=cluster_name,
        cluster=cluster,
        user=_with_absolute(user_entry, "user", _USER_FILES) or {},
        folder=user_entry.folder,
    )


def _parsed(file: Path) -> dict[str, Any]:
    try:
        documents = parse_documents(read_limited(file).decode("utf-8-sig"))
    except OSError as error:
        raise KubeConfigError(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise KubeConfigError(f"{file}: not YAML: it is not UTF-8") from None
    except YamlError as error:
        place = f"{file}:{error.line}" if error.line else str(file)
        raise KubeConfigError(f"{place}: not YAML: {error}") from None
    if not documents or not isinstance(documents[0].value, dict):
        raise KubeConfigError(f"{file}: not a kubeconfig")
    document = documents[0]
    for line, problem in document.located(document.problems):
        # The message may quote a value, such as a token.
        path = ".".join(map(str, problem.path))
        raise KubeConfigError(f"{file}:{line}: {path} is given twice or has an invalid value")
    return dict(document.value)


def _by_name(files: list[_File], section: str) -> dict[str, _Entry]:
    """The named entries of all files; the first of a name counts."""
    entries: dict[str, _Entry] = {}
    for folder, content in files:
        listed = content.get(section)
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict) and "name" in entry:
                entries.setdefault(str(entry["name"]), _Entry(folder, entry))
    return entries


def _with_absolute(entry: _Entry, key: str, names: tuple[str, ...]) -> Any:
    """The section ``key`` of an entry, with paths relative to its file made absolute."""
    section = entry.content.get(key)
    if not isinstance(section, dict):
        return section
    files = {
        name: str(entry.folder / section[name])
        for name in names
        if isinstance(section.get(name), str) and section[name]
    }
    return {**section, **files}
