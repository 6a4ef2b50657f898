"""The documentation site is built with strict checks, and needs no other host."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = all(
    importlib.util.find_spec(name) for name in ("properdocs", "material", "mkdocstrings")
)
pytestmark = pytest.mark.skipif(
    not INSTALLED, reason="the extra `docs` is not installed (make setup): the site is not built"
)
_LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^>]+"
)


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet: it hides warnings from --strict.
    return subprocess.run(
        [sys.executable, "-m", "properdocs", "build", "--strict",
         "--config-file", str(config), "--site-dir", str(site)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


def test_site_has_no_broken_link_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = [*tmp_path.rglob("*.html")]
    assert len(pages) > 50
    for page in pages:
        assert not _LOADED.search(page.read_text()), page
    assert '<svg id="diagram-' in (tmp_path / "explanation" / "how-it-works.html").read_text()
    # Members that mkdocstrings read from the code.
    assert (
        'id="asched.framework.NodeInfo.free"'
        in (tmp_path / "reference" / "plugins" / "types.html").read_text()
    )


BROKEN = """\
# Broken

[no such page](missing.md), [no such heading](good.md#nowhere),
[no such file of the repository](../no/such/file.txt)

```mermaid
flowchart LR
  not --> drawn
```
"""


def test_broken_pages_are_errors(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "broken.md").write_text(BROKEN)
    (docs / "good.md").write_text("# Good\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {docs}\nextra_css: []\nplugins: []\n"
        f"hooks: [{ROOT}/tests/docs/site_hooks.py]\n"
        "nav: [broken.md, good.md, ARCHITECTURE.md, CHANGELOG.md, CONTRIBUTING.md]\n"
    )
    done = build(config, tmp_path / "site")
    assert done.returncode == 1
    for part in ("'missing.md'", "'#nowhere'", "no/such/file.txt", "tests.docs.diagrams"):
        assert part in done.stderr
