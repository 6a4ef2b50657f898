"""A real browser on the pages of a journal."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

for _name in ("playwright", "axe_playwright_python"):
    pytest.importorskip(_name, reason=f"{_name} is not installed (make setup): no page is tested")

from axe_playwright_python.async_playwright import Axe  # noqa: E402
from playwright.async_api import (  # noqa: E402
    ConsoleMessage,
    Page,
    Request,
    async_playwright,
    expect,
)

from asched.ui.lab.runs import LabSettings  # noqa: E402
from asched.ui.security import Access  # noqa: E402
from tests.ui.serving import Client, ui_on  # noqa: E402

WIDTH_PX, HEIGHT_PX = 1280, 900
PHONE: Final = (390, 844)
SCREENSHOTS_ENV: Final = "ASCHED_SCREENSHOTS"
"""Names the folder into which the tests write screenshots."""
_SERIOUS: Final = ("serious", "critical")


@dataclass
class Tab:
    """A page of the browser, and everything that went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    """Errors of scripts, violations of the Content-Security-Policy, requests to other hosts."""

    def __post_init__(self) -> None:
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", self._note_request)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.problems.append(f"request to {request.url}")

    async def open(self, path: str) -> None:
        """Load a page and wait until its modules have drawn it."""
        await self.page.goto(self.url + path)
        await self.ready()

    async def ready(self) -> None:
        await expect(self.page.locator("[aria-busy=true]")).to_have_count(0)

    async def text(self, selector: str) -> str:
        return " ".join((await self.page.locator(selector).inner_text()).split())

    async def texts(self, selector: str) -> list[str]:
        found = await self.page.locator(selector).all_inner_texts()
        return [" ".join(text.split()) for text in found]

    async def rows(self, selector: str) -> list[list[str]]:
        """The cells of each row of a table's body."""
        return [
            await self._cells(row) for row in await self.page.locator(f"{selector} tbody tr").all()
        ]

    async def _cells(self, row: Any) -> list[str]:
        return [" ".join(text.split()) for text in await row.locator("th, td").all_inner_texts()]

    async def violations(self) -> list[str]:
        """Serious violations of the rules of axe-core."""
        found = await Axe().run(self.page)
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found.response["violations"]
            if one["impact"] in _SERIOUS
        ]

    async def screenshot(self, name: str) -> None:
        """Written only if :data:`SCREENSHOTS_ENV` names a folder."""
        folder = os.environ.get(SCREENSHOTS_ENV)
        if folder:
            await self.page.set_viewport_size({"width": 1120, "height": 720})
            await self.page.screenshot(path=Path(folder) / f"{name}.png")


class Screen(NamedTuple):
    width_px: int = WIDTH_PX
    height_px: int = HEIGHT_PX
    dark: bool = False
    token: str = ""
    """What the server asks for; empty for no login."""
    lab: LabSettings | None = None


DESK: Final = Screen()


@asynccontextmanager
async def browsing(
    chromium: str, journal: str, screen: Screen = DESK
) -> AsyncIterator[tuple[Tab, Client]]:
    """A tab, and a client of the same server. Nothing may have gone wrong at the end."""
    async with (
        ui_on(journal, Access(screen.token), screen.lab) as client,
        tab_on(chromium, client, screen) as tab,
    ):
        await client.caught_up()
        yield tab, client
        assert tab.problems == []


@asynccontextmanager
async def tab_on(chromium: str, client: Client, screen: Screen = DESK) -> AsyncIterator[Tab]:
    """A tab on the server of the client."""
    async with async_playwright() as tools:
        browser = await tools.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            context = await browser.new_context(
                viewport={"width": screen.width_px, "height": screen.height_px},
                color_scheme="dark" if screen.dark else "light",
                timezone_id="Asia/Kolkata",
            )
            yield Tab(await context.new_page(), client.url)
        finally:
            await browser.close()
