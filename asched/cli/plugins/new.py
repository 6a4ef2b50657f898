"""A new distribution from the template, which is a working distribution itself.

It is made another one by putting the new names in place of its own, in files and in their names.
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
from asched.config.registry import PluginRegistry

MAX_LENGTH: Final = 30
"""Of a name, so that what is written with it stays within lines of 100 characters."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*")
_PREFIX: Final = "asched-"


class NameRefused(ValueError):  # noqa: N818  it is shown to the user as a sentence
    """A name for a distribution that cannot be used; one line that says why."""


class Names(NamedTuple):
    """What a distribution is called in different places."""

    distribution: str
    module: str
    plugin: str
    """The class, and the plugin's name in configurations."""

    @classmethod
    def of(cls, name: str, registry: PluginRegistry) -> Names:
        """The names that follow from the distribution's. Raises :class:`NameRefused`."""
        if not _NAME.fullmatch(name) or len(name) > MAX_LENGTH:
            raise NameRefused(
                f'"{name}" is no name for a plugin; write small letters, digits and dashes, at most'
                f" {MAX_LENGTH}, such as rack-affinity"
            )
        words = name.removeprefix(_PREFIX).split("-")
        names = cls(name, name.replace("-", "_"), "".join(word.capitalize() for word in words))
        for refusal in _refusals(names, registry):
            raise NameRefused(f'"{name}" cannot be used: {refusal}; choose another')
        return names


TEMPLATE: Final = Names("asched-plugin-template", "asched_plugin_template", "PluginTemplate")


def _refusals(names: Names, registry: PluginRegistry) -> Iterator[str]:
    if names.distribution == "asched":
        yield "it is the scheduler's own"
    if keyword.iskeyword(names.module):
        yield f"{names.module} is a word of Python"
    if names.module in sys.stdlib_module_names or find_spec(names.module) is not None:
        yield f"there is a module {names.module} already"
    taken = {*dir(builtins), *asched.framework.__all__}
    if names.plugin in taken or f"{names.plugin}Args" in taken:
        yield f"the plugin would be called {names.plugin}, which means something else"
    for owner in registry.offered_by(names.plugin):
        yield f"{owner} has a plugin {names.plugin}"


def template_folder() -> Path:
    """Where the template lies: inside the installed package, or in a checkout."""
    package = Path(asched.__file__).parent
    for folder in (
        package / "_plugin_template",
        package.parent / "plugins" / TEMPLATE.distribution,
    ):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise FileNotFoundError(errno.ENOENT, "asched is not installed whole", "_plugin_template")


def write_distribution(names: Names, folder: Path) -> tuple[Path, ...]:
    """Write the distribution into a new folder, all of it or nothing; the files, relative to it.

    Raises OSError: FileExistsError where there is anything of that name already.
    """
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(errno.EEXIST, "it exists", str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        written = tuple(_write(names, draft))
        draft.chmod(0o777 & ~_umask())
        # A folder that came to be meanwhile is only replaced where it is empty.
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
    return written


def _write(names: Names, folder: Path) -> Iterator[Path]:
    source = template_folder()
    for relative in template_files(source):
        target = Path(_renamed(relative.as_posix(), names))
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        text = _renamed((source / relative).read_text(encoding="utf-8"), names)
        (folder / target).write_text(text, encoding="utf-8")
        yield target


def template_files(source: Path) -> list[Path]:
    """The files of the template, relative to it, without what tools left behind."""
    return sorted(
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and not _left_behind(path.relative_to(source))
    )


def _left_behind(path: Path) -> bool:
    return any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)


def _renamed(text: str, names: Names) -> str:
    for old, new in zip(TEMPLATE, names, strict=True):
        text = text.replace(old, new)
    return text


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
