"""Draws the Mermaid diagrams of the pages as SVG files, which the site contains.

    python -m tests.docs.diagrams --mermaid node_modules/mermaid/dist/mermaid.min.js

So the site loads no script of 3.5 MB, and none from another host. The file is part of the npm
package ``mermaid`` (11.17 drew the present ones); Chromium runs it. Drawings of diagrams that no
page has are deleted.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

from tests.docs.site_hooks import DIAGRAMS, ROOT, diagram_file

_FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```", re.M | re.S)
_SETTINGS: Final = {
    "startOnLoad": False,
    "theme": "neutral",
    "fontFamily": "Arial, Helvetica, sans-serif",
    # Text of SVG instead of HTML: readable in every viewer.
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False},
}


def sources() -> Iterator[str]:
    """The diagrams of all pages."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "ARCHITECTURE.md"]
    for page in pages:
        yield from _FENCE.findall(page.read_text(encoding="utf-8"))


def draw(page: Page, source: str) -> str:
    """The SVG of one diagram."""
    drawn = page.evaluate(
        "([id, source]) => mermaid.render(id, source)",
        [f"diagram-{diagram_file(source).stem}", source],
    )
    svg: str = drawn["svg"]
    return svg.strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the Mermaid diagrams of the pages.")
    parser.add_argument("--mermaid", type=Path, required=True, help="mermaid.min.js")
    script: Path = parser.parse_args().mermaid
    DIAGRAMS.mkdir(parents=True, exist_ok=True)
    wanted = {diagram_file(source): source for source in sources()}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.add_script_tag(path=script)
        page.evaluate("settings => mermaid.initialize(settings)", _SETTINGS)
        for file, source in wanted.items():
            file.write_text(draw(page, source), encoding="utf-8")
        browser.close()
    for file in DIAGRAMS.glob("*.svg"):
        if file not in wanted:
            file.unlink()


if __name__ == "__main__":
    main()
