"""Creates a distribution from the template, which is a working distribution itself.

The new names replace the names of the template in files and file names.
"""

from __future__ import annotations

import builtins
import errno
import keyword
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import asched.framework
from asched.cli.errors import BadInput
from asched.config.registry import PluginRegistry

MAX_LENGTH: Final = 30
"""Of a name. Keeps lines that contain it below 100 characters."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*")
_PREFIX: Final = "asched-"


class Names(NamedTuple):
    """The names of a distribution and its parts."""

    distribution: str
    module: str
    plugin: str
    """The class, and the plugin's name in configurations."""

    @classmethod
    def of(cls, name: str, registry: PluginRegistry) -> Names:
        """The names derived from the distribution's. Raises BadInput."""
        if not _NAME.fullmatch(name) or len(name) > MAX_LENGTH:
            raise BadInput(
                f'"{name}" is not a plugin name; use lower-case letters, digits and dashes, at most'
                f" {MAX_LENGTH}, such as rack-affinity"
            )
        words = name.removeprefix(_PREFIX).split("-")
        names = cls(name, name.replace("-", "_"), "".join(word.capitalize() for word in words))
        for conflict in _conflicts(names, registry):
            raise BadInput(f'"{name}" cannot be used: {conflict}; choose another')
        return names


TEMPLATE: Final = Names("asched-plugin-template", "asched_plugin_template", "PluginTemplate")


def _conflicts(names: Names, registry: PluginRegistry) -> Iterator[str]:
    if names.distribution == "asched":
        yield "it is the name of the scheduler"
    if keyword.iskeyword(names.module):
        yield f"{names.module} is a Python keyword"
    if names.module in sys.stdlib_module_names or find_spec(names.module) is not None:
        yield f"a module {names.module} exists"
    taken = {*dir(builtins), *asched.framework.__all__}
    if names.plugin in taken or f"{names.plugin}Args" in taken:
        yield f"the plugin would be called {names.plugin}, which has another meaning"
    for owner in registry.providers(names.plugin):
        yield f"{owner} has a plugin {names.plugin}"


def template_folder() -> Path:
    """The template: inside the installed package, or in a checkout."""
    package = Path(asched.__file__).parent
    checkout = package.parent / "plugins" / TEMPLATE.distribution
    for folder in (package / "_plugin_template", checkout):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise FileNotFoundError(
        errno.ENOENT, "the installation of asched is incomplete", "_plugin_template"
    )


def write_distribution(names: Names, folder: Path) -> tuple[Path, ...]:
    """Write the distribution into a new folder, completely or not at all. Returns its files.

    Raises OSError; FileExistsError if the folder exists.
    """
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(errno.EEXIST, "exists", str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        written = tuple(_write(names, draft))
        draft.chmod(0o777 & ~_umask())
        # rename replaces a folder created meanwhile only if it is empty.
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
    return written


def _write(names: Names, folder: Path) -> Iterator[Path]:
    source = template_folder()
    for relative in template_files(source):
        target = Path(_rename(relative.as_posix(), names))
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        text = _rename((source / relative).read_text(encoding="utf-8"), names)
        (folder / target).write_text(text, encoding="utf-8")
        yield target


def template_files(source: Path) -> list[Path]:
    """The relative paths of the template's files, without files left by tools."""
    return sorted(
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and not _is_cache(path.relative_to(source))
    )


def _is_cache(path: Path) -> bool:
    return any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)


def _rename(text: str, names: Names) -> str:
    for old, new in zip(TEMPLATE, names, strict=True):
        text = text.replace(old, new)
    return text


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
