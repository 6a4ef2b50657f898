"""Hooks of the documentation site (``mkdocs.yml``).

They let the site be built from pages that are also read in the repository:

- ARCHITECTURE.md, CHANGELOG.md and CONTRIBUTING.md are pages of the site;
- a link to a file of the repository that is no page becomes its path;
- a Mermaid diagram becomes the SVG that ``python -m tests.docs.diagrams`` drew;
- mkdocstrings reads only the packages of the plugin API, in a second instead of eight.

A link or a diagram that is missing is an error of the build.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, Final

from properdocs.config.defaults import ProperDocsConfig
from properdocs.plugins import event_priority, get_plugin_logger
from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
DIAGRAMS: Final = ROOT / "docs" / "images" / "diagrams"
ROOT_PAGES: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
PUBLIC_PACKAGES: Final = ("__init__.py", "framework", "model")
_log = get_plugin_logger("site")
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)]*)?\)")


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Connects diagrams and the sources of the plugin API."""
    fence = {"name": "mermaid", "class": "mermaid", "format": diagram_html}
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [fence]
    api: Any = config.plugins.get("mkdocstrings")
    if api is not None:
        api.config["handlers"]["python"]["paths"] = [_public_packages()]
    return config


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Adds the pages that are in the root of the repository."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """Replaces links that leave the folder of pages."""
    place = PurePosixPath(page.file.src_uri)
    folder = ROOT if str(place) in ROOT_PAGES else Path(config.docs_dir) / place.parent

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to(config.docs_dir):
            uri = path.relative_to(config.docs_dir).as_posix()
        elif path.parent == ROOT and path.name in ROOT_PAGES:
            uri = path.name
        elif path.exists():
            return f"{text} (`{path.relative_to(ROOT).as_posix()}`)"
        else:
            return match[0]
        return f"[{text}]({os.path.relpath(uri, place.parent)}{anchor})"

    return _LINK.sub(replaced, markdown)


def diagram_file(source: str) -> Path:
    """The file with the drawing of a Mermaid diagram. Its name depends on the source."""
    return DIAGRAMS / f"{hashlib.sha256(source.strip().encode()).hexdigest()[:12]}.svg"


def diagram_html(source: str, *_: Any, **__: Any) -> str:
    """The drawing as a part of the page; empty, with a warning, where it is missing."""
    file = diagram_file(source)
    if not file.is_file():
        first = source.strip().partition("\n")[0]
        _log.warning(
            "no drawing %s of the diagram that begins with %r: run python -m tests.docs.diagrams",
            file.name,
            first,
        )
        return ""
    return f'<div class="diagram">{file.read_text(encoding="utf-8")}</div>'


def _public_packages() -> str:
    """A folder in which the package has only its public parts."""
    folder = Path(tempfile.mkdtemp(prefix="asched-api-"))
    (folder / "asched").mkdir()
    for name in PUBLIC_PACKAGES:
        (folder / "asched" / name).symlink_to(ROOT / "asched" / name)
    return str(folder)
